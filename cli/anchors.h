/* Errors that users meet often have a place in docs/errors.md. */
#ifndef TSR_CLI_ANCHORS_H
#define TSR_CLI_ANCHORS_H

/* The heading that tells more of an error; NULL: there is none. Static storage. */
const char *tsr_error_anchor(const char *message);

#endif
