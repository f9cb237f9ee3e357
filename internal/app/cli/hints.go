package cli

import "regexp"

// sqlHints are what the SQL functions suggest, each with the command that does the same.
var sqlHints = []struct {
	sql     *regexp.Regexp
	command string
}{
	{regexp.MustCompile(`select core\.outbox_undiscard\('(.+?)'\)`), "`workers events undiscard $1`"},
	{regexp.MustCompile(`select core\.outbox_replay\('(.+?)', <generation>, <who>\)`),
		"`workers events replay $1 --to GENERATION`"},
	{regexp.MustCompile(`select core\.outbox_retry_now\('(.+?)'\)`), "`workers events retry-now $1`"},
	{regexp.MustCompile(`select core\.event_type_resume\('(.+?)', (\d+)\)`),
		"`workers events resume $1 --generation $2`"},
	{regexp.MustCompile(`select event_type, generation from core\.paused_types`), "`workers events pause --list`"},
	{regexp.MustCompile(`select core\.generation_drain\((\d+)\);`), "`workers generation drain $1`"},
	{regexp.MustCompile(`select generation, status from core\.(generation_status\(\)|deployments)`),
		"`workers generation status`"},
	{regexp.MustCompile(`p_force => true`), "--force"},
}

// withCommands returns an error's text with commands in place of SQL.
func withCommands(text string) string {
	for _, h := range sqlHints {
		text = h.sql.ReplaceAllString(text, h.command)
	}
	return text
}
