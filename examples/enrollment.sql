-- The enrollment side: database "enrollment".

CREATE EXTENSION idem CASCADE;

CREATE SCHEMA enrollment;

-- The inbox keeps one event from being applied twice.  This constraint keeps two
-- different events from giving one learner two seats: the guard nearest the
-- effect.
CREATE TABLE enrollment.seat (
	offering_id		text NOT NULL,
	principal_id	text NOT NULL,
	payment_id		uuid NOT NULL,
	UNIQUE (offering_id, principal_id)
);

-- Paid for a seat that the learner had already: to be paid back.
CREATE TABLE enrollment.refund (
	payment_id		uuid PRIMARY KEY,
	offering_id		text NOT NULL,
	principal_id	text NOT NULL
);

CREATE ROLE enrollment_service LOGIN;
SELECT idem_grant('consumer', 'enrollment_service');
GRANT USAGE ON SCHEMA enrollment TO enrollment_service;
GRANT SELECT, INSERT ON enrollment.seat TO enrollment_service;
GRANT INSERT ON enrollment.refund TO enrollment_service;
