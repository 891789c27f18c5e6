/*-------------------------------------------------------------------------
 *
 * form.h
 *	  Is a text canonical?
 *
 *-------------------------------------------------------------------------
 */
#ifndef FUZZ_FORM_H
#define FUZZ_FORM_H

#include <stddef.h>

extern void check_form(const char *text, size_t len);

#endif							/* FUZZ_FORM_H */
