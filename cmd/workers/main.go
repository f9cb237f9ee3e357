// Command workers runs Spectral's event workers, and everything an operator does to them.
package main

import (
	"context"
	"os"

	"spectral/internal/app/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), cli.System(), os.Args[1:]))
}
