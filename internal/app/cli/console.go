package cli

import (
	"github.com/spf13/cobra"

	"spectral/internal/app"
)

func consoleCommand(p Process) *cobra.Command {
	addr := app.ConsoleAddr
	cmd := &cobra.Command{
		Use: "console", Short: "Serve the operators' web console", Args: cobra.NoArgs,
		Long: `Serve the console until SIGINT or SIGTERM. ` + "`workers run`" + ` serves it too,
beside its health checks.

A visitor on the same host may look. All others need a name from a proxy that
signs persons in, or a token.

Settings:
  SPECTRAL_CONSOLE_URL          database login of the console, which is not the
                                workers'
  SPECTRAL_CONSOLE_HOSTS        optional: host names, besides the loopback ones
  SPECTRAL_CONSOLE_TRUSTED      optional: addresses of proxies, like 10.0.0.0/8
  SPECTRAL_CONSOLE_USER_HEADER  optional: where they name the person, by
                                default X-Forwarded-User
  SPECTRAL_CONSOLE_ROLES        optional: file of lines "<name> <role>"
  SPECTRAL_CONSOLE_TOKENS       optional: file of lines "<sha256> <name> <role>"`,
		Example: `  SPECTRAL_CONSOLE_URL=postgres://console@db/app workers console`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := app.ReadConsole(p.Getenv)
			if err != nil {
				return err
			}
			if c == nil {
				return usagef("%s is not set: set it to the URL of the console's login (docs/console.md)", app.EnvConsoleURL)
			}
			log, flush, err := logger(cmd, p, 0)
			if err != nil {
				return err
			}
			defer flush()
			if err := c.Check(cmd.Context()); err != nil {
				return err
			}
			return app.ServeConsole(cmd.Context(), c, addr, log, func(url string) {
				p.notef("the console is at %s", url)
			})
		},
	}
	cmd.Flags().StringVar(&addr, "addr", addr, "where to serve: an address and a port")
	return cmd
}
