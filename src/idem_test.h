/*-------------------------------------------------------------------------
 *
 * idem_test.h
 *		Named points where a test stops or kills a process; test builds only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_TEST_H
#define IDEM_TEST_H

extern void idem_test_init(void);

#endif							/* IDEM_TEST_H */
