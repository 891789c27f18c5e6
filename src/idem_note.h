/*-------------------------------------------------------------------------
 *
 * idem_note.h
 *		Telling the relay, at commit, which rows of the outbox are new.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_NOTE_H
#define IDEM_NOTE_H

extern void idem_note_init(void);
extern void idem_note_row(int64 seq, int leaf);
extern void idem_note_holds(void);

#endif							/* IDEM_NOTE_H */
