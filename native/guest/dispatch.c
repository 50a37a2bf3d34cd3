#include "dispatch.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "action.h"
#include "connection.h"
#include "clock.h"
#include "hello.h"
#include "machine.h"
#include "session.h"
#include "start.h"
#include "../common/reason.h"
#include "stream.h"
#include "user.h"
#include "timer.h"

static bool greeted;

static void greet(const struct frame *frame) {
    struct hello hello;
    if (!hello_parse(&hello, frame->payload, frame->length) || hello.version < PROTOCOL_VERSION || greeted) {
        stream_fault("a HELLO that cannot be answered");
        return;
    }
    greeted = true;
    machine_identify(&hello);
    uint8_t payload[64];
    struct field_writer fields;
    fields_write(&fields, payload, sizeof payload);
    fields_put_number(&fields, 1, PROTOCOL_VERSION);
    fields_put_number(&fields, 2, (uint64_t)getpid());
    fields_put_number(&fields, 3, 0);
    stream_send_fields(GUEST_HELLO, 0, &fields);
}

void refuse(uint32_t id, int error, enum refusal reason, const char *text) {
    if (text == NULL) text = reason_of(error);
    uint8_t payload[256];
    struct field_writer fields;
    fields_write(&fields, payload, sizeof payload);
    fields_put_number(&fields, 1, (uint64_t)error);
    fields_put_text(&fields, 2, text);
    fields_put_number(&fields, 3, reason);
    stream_send_fields(GUEST_REFUSED, id, &fields);
}

void refuse_cwd(uint32_t id, int error, const char *cwd) {
    char text[192];
    snprintf(text, sizeof text, "%.128s: %s", cwd != NULL ? cwd : "/", reason_of(error));
    refuse(id, error, REFUSED_CWD, text);
}

static void carry_out(uint32_t id, struct request *request) {
    if (request->mode == MODE_SESSION) {
        session_start(id, request);
    } else if (request->mode == MODE_LINE) {
        session_run_line(id, request);
    } else if (request->mode >= MODE_DIAL) {
        connection_start(id, request);
    } else {
        start_command(id, request);
    }
}

static void run_as_user(uint32_t id, struct request *request) {
    struct account *account = user_of(id, request);
    if (account == NULL) return;
    request->account = account;
    carry_out(id, request);
    user_free(account);
}

static void run(const struct frame *frame) {
    struct request request;
    const char *reason = NULL;
    if (action_find(frame->id) != NULL) {
        stream_fault("an id that is in use");
        return;
    }
    switch (request_parse(&request, frame->payload, frame->length, &reason)) {
    case REQUEST_BROKEN: stream_fault("a RUN that is not a list of fields"); return;
    case REQUEST_BAD: refuse(frame->id, EINVAL, REFUSED_REQUEST, reason); return;
    case REQUEST_NO_MEMORY: refuse(frame->id, ENOMEM, REFUSED_CAPACITY, NULL); return;
    case REQUEST_GOOD: break;
    }
    (request.user != NULL ? run_as_user : carry_out)(frame->id, &request);
    request_free(&request);
}

static void data(struct action *action, const struct frame *frame) {
    const char *fault = NULL;
    if (action->connection != NULL) {
        fault = connection_receive(action, frame->payload, frame->length);
    } else if (!intake_receive(&action->intake, frame->payload, frame->length)) {
        fault = "more stdin than the credit allows";
    }
    if (fault != NULL) stream_fault(fault);
    action_queue(action);
}

/* OUTPUT_CREDIT, SIGNAL and RESIZE, which carry numbers. */
static void steer(struct action *action, const struct frame *frame) {
    uint64_t first;
    uint64_t second;
    const char *fault = numbers_parse(frame, &first, &second);
    if (fault != NULL) {
        stream_fault(fault);
    } else if (action == NULL) {
        return;
    } else if (frame->kind == HOST_OUTPUT_CREDIT && first > CREDIT_MAX_BYTES - action->credit) {
        stream_fault("more credit than there can be");
    } else if (frame->kind == HOST_OUTPUT_CREDIT) {
        action->credit += first;
        action_queue(action);
    } else if (frame->kind == HOST_SIGNAL && first >= 1 && first <= 64) {
        action_signal(action, (int)first, second != 0);
    } else if (frame->kind == HOST_RESIZE && first <= UINT16_MAX && second <= UINT16_MAX) {
        start_resize(action, (uint16_t)first, (uint16_t)second);
    }
}

static void stood_still(const struct frame *frame) {
    uint64_t stood_ms;
    uint64_t unused;
    const char *fault = numbers_parse(frame, &stood_ms, &unused);
    if (fault != NULL) stream_fault(fault);
    else if (stood_ms <= UINT64_MAX / NS_PER_MS) timers_delay(stood_ms * NS_PER_MS);
}

void dispatch_frame(const struct frame *frame) {
    if (!greeted && frame->kind != HOST_HELLO) {
        stream_fault("a frame before HELLO");
        return;
    }
    struct action *action = frame->id == 0 || frame->kind == HOST_RUN ? NULL : action_find(frame->id);
    switch (frame->kind) {
    case HOST_HELLO: greet(frame); break;
    case HOST_RUN: run(frame); break;
    case HOST_PING: stream_send(GUEST_PONG, 0, frame->payload, frame->length); break;
    case HOST_QUIT: stream_end(); break;
    case HOST_STOOD_STILL: stood_still(frame); break;
    case HOST_INPUT:
        if (action != NULL) data(action, frame);
        break;
    case HOST_INPUT_END:
        if (action == NULL) break;
        action->intake.complete = true;
        action_queue(action);
        break;
    default: steer(action, frame); break;
    }
}
