#include "account.h"

#include <string.h>

enum { PASSWD_FIELDS = 7, GROUP_FIELDS = 4 };

static bool equal(struct text text, struct text other) {
    return text.length == other.length && memcmp(text.start, other.start, text.length) == 0;
}

/* What comes before the next `end`, which is taken away with it. */
static struct text take(struct text *rest, char end) {
    const char *found = rest->length > 0 ? memchr(rest->start, end, rest->length) : NULL;
    struct text taken = {rest->start, found != NULL ? (size_t)(found - rest->start) : rest->length};
    size_t gone = taken.length + (found != NULL ? 1 : 0);
    rest->start += gone;
    rest->length -= gone;
    return taken;
}

static bool parse_id(struct text text, uint32_t *id) {
    uint64_t number = 0;
    if (text.length == 0 || text.length > 10) return false;
    for (size_t i = 0; i < text.length; i++) {
        if (text.start[i] < '0' || text.start[i] > '9') return false;
        number = number * 10 + (uint64_t)(text.start[i] - '0');
    }
    if (number > ACCOUNT_ID_MAX) return false;
    *id = (uint32_t)number;
    return true;
}

static bool is_number(struct text text) {
    for (size_t i = 0; i < text.length; i++) {
        if (text.start[i] < '0' || text.start[i] > '9') return false;
    }
    return text.length > 0;
}

/* The fields of the next line that has exactly `count` of them and no NUL byte; false at the end of the file. */
static bool next_entry(struct text *file, struct text *fields, int count) {
    while (file->length > 0) {
        struct text line = take(file, '\n');
        if (line.length == 0 || memchr(line.start, '\0', line.length) != NULL) continue;
        int colons = 0;
        for (size_t i = 0; i < line.length; i++) colons += line.start[i] == ':';
        if (colons != count - 1) continue;
        for (int i = 0; i < count; i++) fields[i] = take(&line, ':');
        return true;
    }
    return false;
}

static bool copy(char *target, size_t size, struct text text, const char *otherwise) {
    if (text.length == 0) text = (struct text){otherwise, strlen(otherwise)};
    if (text.length >= size) return false;
    memcpy(target, text.start, text.length);
    target[text.length] = '\0';
    return true;
}

/* The first entry with the name, or with the uid. One that cannot be used is passed over. */
static bool find_user(struct account *account, struct text wanted, bool by_uid, struct text passwd) {
    struct text fields[PASSWD_FIELDS];
    while (next_entry(&passwd, fields, PASSWD_FIELDS)) {
        uint32_t uid, gid;
        if (fields[0].length == 0 || !parse_id(fields[2], &uid) || !parse_id(fields[3], &gid)) continue;
        if (by_uid ? uid != account->uid : !equal(fields[0], wanted)) continue;
        if (!copy(account->name, sizeof account->name, fields[0], "") ||
            !copy(account->home, sizeof account->home, fields[5], "/") ||
            !copy(account->shell, sizeof account->shell, fields[6], "/bin/sh"))
            continue;
        account->uid = uid;
        account->gid = gid;
        account->listed = true;
        return true;
    }
    return false;
}

static bool find_group(uint32_t *gid, struct text wanted, struct text group) {
    struct text fields[GROUP_FIELDS];
    if (is_number(wanted)) return parse_id(wanted, gid);
    while (next_entry(&group, fields, GROUP_FIELDS)) {
        if (equal(fields[0], wanted) && parse_id(fields[2], gid)) return true;
    }
    return false;
}

static bool is_member(struct text members, struct text name) {
    while (members.length > 0) {
        if (equal(take(&members, ','), name)) return true;
    }
    return false;
}

static bool has_group(const struct account *account, uint32_t gid) {
    for (size_t i = 0; i < account->group_count; i++) {
        if (account->groups[i] == gid) return true;
    }
    return false;
}

static bool add_memberships(struct account *account, struct text group) {
    struct text name = {account->name, strlen(account->name)};
    struct text fields[GROUP_FIELDS];
    while (next_entry(&group, fields, GROUP_FIELDS)) {
        uint32_t gid;
        if (!is_member(fields[3], name) || !parse_id(fields[2], &gid) || has_group(account, gid)) continue;
        if (account->group_count == ACCOUNT_GROUPS_MAX) return false;
        account->groups[account->group_count++] = gid;
    }
    return true;
}

enum account_outcome account_find(struct account *account, const char *wanted, struct text passwd, struct text group) {
    struct text rest = {wanted, strlen(wanted)};
    bool has_colon = memchr(wanted, ':', rest.length) != NULL;
    struct text user = take(&rest, ':');
    bool by_uid = is_number(user);
    account->listed = false;
    if (user.length == 0 || user.length >= ACCOUNT_NAME_BYTES || (has_colon && rest.length == 0) ||
        rest.length >= ACCOUNT_NAME_BYTES || (rest.length > 0 && memchr(rest.start, ':', rest.length) != NULL) ||
        (by_uid && !parse_id(user, &account->uid)))
        return ACCOUNT_MALFORMED;
    if (!find_user(account, user, by_uid, passwd)) {
        if (!by_uid) return ACCOUNT_NO_USER;
        account->gid = account->uid;
    }
    if (has_colon && !find_group(&account->gid, rest, group)) return ACCOUNT_NO_GROUP;
    account->groups[0] = account->gid;
    account->group_count = 1;
    bool joins = account->listed && !has_colon;
    return joins && !add_memberships(account, group) ? ACCOUNT_MANY_GROUPS : ACCOUNT_FOUND;
}
