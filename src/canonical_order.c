/*-------------------------------------------------------------------------
 *
 * canonical_order.c
 *	  The order of an object's members: by the UTF-16 code units of their names
 *	  (RFC 8785, section 3.2.3).
 *
 *-------------------------------------------------------------------------
 */
#include "canonical.h"

#include <string.h>

/* Up to here members are sorted by insertion, without scratch space. */
#define INSERTION_MAX 16

/* Look for interrupts once in so many members. */
#define TICK_EVERY 1024

/*
 * The place of a UTF-8 byte in UTF-16 order.  Code points above U+FFFF (lead
 * bytes F0 to F4) are surrogates there, so they come before U+E000 to U+FFFF
 * (lead bytes EE and EF).  All else orders alike in both encodings.
 */
static inline int
utf16_rank(unsigned char byte)
{
	return byte == 0xEE || byte == 0xEF ? byte + 0x10 : byte;
}

/*
 * Compare two names, valid UTF-8, by their UTF-16 code units: negative, zero or
 * positive.  Where two valid texts first differ, both bytes lead a character
 * or both continue one with the same lead, so that byte alone decides.
 */
int
canonical_compare_names(const char *a, size_t alen, const char *b, size_t blen)
{
	size_t		common = alen < blen ? alen : blen;
	size_t		at = 0;
	uint64_t	eight_a;
	uint64_t	eight_b;

	for (; common - at >= sizeof(eight_a); at += sizeof(eight_a))
	{
		memcpy(&eight_a, a + at, sizeof(eight_a));
		memcpy(&eight_b, b + at, sizeof(eight_b));
		if (eight_a != eight_b)
			break;
	}
	for (; at < common; at++)
	{
		if (a[at] != b[at])
			return utf16_rank((unsigned char) a[at]) -
				utf16_rank((unsigned char) b[at]);
	}
	return alen < blen ? -1 : alen > blen;
}

/* Four bytes as a number, the first as the highest. */
static inline uint32_t
four_bytes(const unsigned char *s)
{
	return (uint32_t) s[0] << 24 | (uint32_t) s[1] << 16 |
		(uint32_t) s[2] << 8 | (uint32_t) s[3];
}

/*
 * The first eight bytes of a name, so that the order of these numbers is the
 * order of the names, but for names with one prefix.  Shorter names end in
 * zeros; no name has a zero byte.
 */
static inline uint64_t
name_prefix(const char *name, size_t len)
{
	const unsigned char *s = (const unsigned char *) name;
	uint64_t	prefix = 0;
	size_t		at;

	if (len >= 8)
		prefix = (uint64_t) four_bytes(s) << 32 | four_bytes(s + 4);
	else if (len >= 4)
		prefix = (uint64_t) four_bytes(s) << 32 |
			(uint64_t) four_bytes(s + len - 4) << 8 * (8 - len);
	else
	{
		for (at = 0; at < len; at++)
			prefix |= (uint64_t) s[at] << 8 * (7 - at);
	}
	if ((prefix & UINT64_C(0x8080808080808080)) == 0)
		return prefix;

	/* not all of it is ASCII */
	prefix = 0;
	for (at = 0; at < len && at < 8; at++)
		prefix |= (uint64_t) utf16_rank(s[at]) << 8 * (7 - at);
	return prefix;
}

static inline bool
comes_after(const CanonicalMember *a, const CanonicalMember *b)
{
	const size_t skip = sizeof(a->prefix);

	if (a->prefix != b->prefix)
		return a->prefix > b->prefix;
	/* Names as short as the prefix are equal now. */
	if (a->name_len <= skip || b->name_len <= skip)
		return a->name_len > b->name_len;
	return canonical_compare_names(a->name + skip, a->name_len - skip,
								   b->name + skip, b->name_len - skip) > 0;
}

/* Do two members that were sorted together have one name? */
bool
canonical_same_name(const CanonicalMember *a, const CanonicalMember *b)
{
	return a->prefix == b->prefix && a->name_len == b->name_len &&
		memcmp(a->name, b->name, a->name_len) == 0;
}

static void
insertion_sort(CanonicalMember *members, size_t nmembers)
{
	size_t		i;
	size_t		to;

	for (i = 1; i < nmembers; i++)
	{
		CanonicalMember member = members[i];

		for (to = i; to > 0 && comes_after(&members[to - 1], &member); to--)
			members[to] = members[to - 1];
		members[to] = member;
	}
}

/* Merge the sorted members [0, middle) and [middle, end), by way of scratch. */
static void
merge(CanonicalMember *members, size_t middle, size_t end,
	  CanonicalMember *scratch, void (*tick) (void *ctx), void *ctx)
{
	size_t		left = 0;
	size_t		right = middle;
	size_t		to = 0;

	if (!comes_after(&members[middle - 1], &members[middle]))
		return;
	memcpy(scratch, members, middle * sizeof(*members));
	while (left < middle && right < end)
	{
		if (to % TICK_EVERY == 0)
			tick(ctx);
		if (comes_after(&scratch[left], &members[right]))
			members[to++] = members[right++];
		else
			members[to++] = scratch[left++];
	}
	memcpy(members + to, scratch + left, (middle - left) * sizeof(*members));
}

/* How many members' space canonical_sort_members needs beside theirs. */
size_t
canonical_sort_space(size_t nmembers)
{
	return nmembers <= INSERTION_MAX ? 0 : nmembers;
}

/*
 * Sort the members of an object by their names.  The order of equal ones is
 * kept.  Never more than n log n comparisons, whatever names someone sends.
 * "tick" is called now and then, and may leave by a jump.
 */
void
canonical_sort_members(CanonicalMember *members, size_t nmembers,
					   CanonicalMember *scratch,
					   void (*tick) (void *ctx), void *ctx)
{
	size_t		run;
	size_t		at;

	for (at = 0; at < nmembers; at++)
		members[at].prefix = name_prefix(members[at].name,
										 members[at].name_len);
	for (at = 0; at < nmembers; at += run)
	{
		run = nmembers - at < INSERTION_MAX ? nmembers - at : INSERTION_MAX;
		insertion_sort(members + at, run);
		if (at % TICK_EVERY == 0 && at > 0)
			tick(ctx);
	}
	for (run = INSERTION_MAX; run < nmembers; run *= 2)
	{
		for (at = 0; nmembers - at > run; at += 2 * run)
		{
			size_t		left = nmembers - at;

			if (left <= 2 * run)
			{
				merge(members + at, run, left, scratch, tick, ctx);
				break;
			}
			merge(members + at, run, 2 * run, scratch, tick, ctx);
		}
	}
}
