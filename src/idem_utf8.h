/*-------------------------------------------------------------------------
 *
 * idem_utf8.h
 *	  Strings of the database as UTF-8, whatever its encoding.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_UTF8_H
#define IDEM_UTF8_H

/* The encoding of the database, and what turns it into UTF-8. */
typedef struct Utf8Source
{
	int			encoding;
	bool		is_utf8;
	Oid			conversion;		/* once one was needed */
} Utf8Source;

extern void utf8_source_init(Utf8Source *source);
extern const char *utf8_from_database(Utf8Source *source, const char *str,
									  size_t len, size_t *utf8_len);
extern const char *utf8_from_database_checked(Utf8Source *source,
											  const char *str, size_t len,
											  size_t *utf8_len);

#endif							/* IDEM_UTF8_H */
