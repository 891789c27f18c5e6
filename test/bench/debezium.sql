-- The outbox as Debezium's event router wants it.
CREATE TABLE outbox (
	id				uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	aggregatetype	text NOT NULL,
	aggregateid		text NOT NULL,
	type			text NOT NULL,
	payload			jsonb
);

-- fill(rows, bytes, keys, topic): like hand.fill in relay.sql.
CREATE PROCEDURE fill(rows bigint, bytes integer, keys bigint, topic text)
LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 0 .. rows - 1 BY 1000 LOOP
		INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
		SELECT topic, 'key-' || i % keys, 'order-placed',
			jsonb_build_object('n', i, 'pad', left(repeat(md5(i::text), bytes / 32 + 1), bytes - 18 - length(i::text)))
		FROM generate_series(n, least(n + 999, rows - 1)) AS i;
		COMMIT;
	END LOOP;
END
$$;
