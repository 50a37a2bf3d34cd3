/* On the host: measures the rate of the processor's time stamp counter, which an emulated machine needs. */
#ifndef DUTYFREE_INIT_CLOCK_H
#define DUTYFREE_INIT_CLOCK_H

/* Print the rate in kHz; returns the exit code. */
int clock_tell(void);

#endif
