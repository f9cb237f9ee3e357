package sql_test

import (
	"strings"
	"testing"
)

// Viewers read everything but payloads, of which they see what is not marked as sensitive.
func TestViewersSeeMaskedPayloads(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 2, map[int]string{
		1: `payload = '{"a": 1e400, "secret": {"name": "x", "n": 9007199254740993}, "list": [1]}'`,
		2: "event_type = 'worlds.thing.unknown', payload = '{\"a\": 1}'",
	})
	exec(t, d.admin, "update core.event_types set sensitive = '{secret.name,list,absent.too}' where event_type = $1",
		cardType)
	payload := "select core.event_payload(id, occurred_at) from core.outbox order by id"
	whole := `{"a": 1` + strings.Repeat("0", 400) + `, "list": [1], "secret": {"n": 9007199254740993, "name": "x"}}` +
		`; {"a": 1}`
	d.run(t, line{"viewer", payload, `{"a": 1` + strings.Repeat("0", 400) +
		`, "list": "***", "secret": {"n": 9007199254740993, "name": "***"}}; "masked: its contract is not registered"`},
		line{"payload_reader", payload, whole}, line{"operator", payload, whole}, line{"corrector", payload, whole},
		line{"viewer", "select count(*) from (select id, status, last_error from core.outbox) o", "2"})
	d.refused(t, line{"viewer", "select payload from core.outbox", "42501 ~ outbox"},
		line{"payload_reader", "select payload from core.outbox", "42501 ~ outbox"},
		line{"viewer", "select core.payload_masked('{}', '{}')", "42501 ~ payload_masked"},
		line{"viewer", "select core.outbox_discard('{1}', 'anna')", "42501 ~ outbox_discard"},
		line{"payload_reader", "select core.outbox_retry_now('{1}')", "42501 ~ outbox_retry_now"},
		line{"operator", "select core.outbox_correct('{1}', '{}')", "42501 ~ outbox_correct"})
}

// A corrected copy goes to the live generation, runs for the handlers that have not handled the original, and replaces
// it for good.
func TestCorrectedCopy(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 2, map[int]string{1: filled(`payload = '{"n": 1}', workspace_id = '{7}', target = 'platform',
		channel = 'outbox_gen_1_slow', cause_id = '{9}'`)})
	exec(t, d.admin, `insert into core.handlers (generation, event_type, handler_name) select 1, $1, h
		from unnest('{platform.a,platform.b}'::text[]) h`, cardType)
	exec(t, d.admin, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		select 'platform.a', idempotency_key, id, event_type, content_class from core.outbox`)
	d.refused(t, line{"corrector", "select core.outbox_correct('{1}', '{\"n\": 1}')", "SP034 payload"},
		line{"corrector", "select core.outbox_correct('{1}', '[]')", "SP005 payload"},
		line{"corrector", "select core.outbox_correct('{1}', '{}', 'anna', ' ')", "SP030 reason"},
		line{"corrector", "select core.outbox_correct('{8}', '{}')", "SP031 event_id"})
	d.run(t, line{"corrector", "select core.outbox_correct('{1}', '{\"n\": 2.50}', 'anna', 'typo') is null", "f"},
		line{"", `select o.payload, o.generation, o.channel, o.target, o.workspace_id::text, o.status, o.attempts,
			o.cause_id::text, o.idempotency_key = o.id::text from core.outbox o where o.corrects = '{1}'`,
			`{"n": 2.50} 3 outbox_gen_3_slow platform {7} pending 0 {9} t`},
		line{"", `select h.handler_name, h.event_id::text from core.event_handled h
			join core.outbox o on o.idempotency_key = h.idempotency_key where o.corrects = '{1}'`, "platform.a {1}"},
		line{"", `select discarded_at is not null, failure_history -> -1 ->> 'corrected_as' =
			(select c.id::text from core.outbox c where c.corrects = o.id) from core.outbox o where id = '{1}'`, "t t"},
		line{"", "select acted_by, role = login, tool = current_setting('application_name'), details ->> 'reason' " +
			"from core.operator_actions",
			"anna t t typo"})
	d.refused(t, line{"operator", "select core.outbox_undiscard('{1}', 'anna')", "SP033 event_id"},
		line{"operator", "select count(*) from core.outbox_undiscard_many('{{1}}', 'anna')", "0"},
		line{"corrector", "select core.outbox_correct('{1}', '{}')", "SP033 event_id"})
}
