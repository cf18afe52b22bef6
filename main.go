// Command inferencecache tells gateways which replica of a language model
// already holds a prompt's prefix. See README.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"inferencecache.io/inferencecache/roles"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(roles.Main(ctx, os.Args[1:]))
}
