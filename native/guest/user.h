/* Running an action as another user of the sandbox. */
#ifndef DUTYFREE_USER_H
#define DUTYFREE_USER_H

#include <stdbool.h>
#include <sys/stat.h>

#include "account.h"
#include "request.h"

/* Look up the request's user, and give the request HOME, USER, LOGNAME and SHELL where it names none itself. NULL after
 * answering the request `id` with REFUSED; otherwise free it with user_free when the request was carried out. */
struct account *user_of(uint32_t id, struct request *request);
void user_free(struct account *account);

/* Become this user for good; for a child. 0 or an errno. */
int user_become(const struct account *account);
/* stat with that user's rights: of another user's process, the guest may not see what it has open. */
bool user_stat(uint32_t uid, uint32_t gid, const char *path, struct stat *info);
/* Answer the request `id`, whose child could not become its user. */
void user_refuse(uint32_t id, const struct account *account, int error);

#endif
