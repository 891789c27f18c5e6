-- The outbox as Debezium's event router wants it.
CREATE TABLE outbox (
	id				uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	aggregatetype	text NOT NULL,
	aggregateid		text NOT NULL,
	type			text NOT NULL,
	payload			jsonb
);
