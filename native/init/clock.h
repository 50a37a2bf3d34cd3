/* On the host: how fast its processor counts, which an emulated machine must be told. */
#ifndef DUTYFREE_INIT_CLOCK_H
#define DUTYFREE_INIT_CLOCK_H

/* Print the rate in kHz; returns the exit code. */
int clock_tell(void);

#endif
