// SPDX-License-Identifier: Apache-2.0

package http

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// Main is the program mapper-http.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.HTTPMapper]{
		Name:  "mapper-http",
		Short: "The mapper for devices with an HTTP interface",
		Long: `mapper-http connects to a node's broker and drives every Device of that node whose
protocol is "http". The Device says where it is, and how the mapper signs in:

  protocol: {type: http, config: {url: "http://10.0.0.9"}}
  protocol: {type: http, config: {url: "https://10.0.0.9/api", auth: bearer, credentials: boiler, ca: boiler.pem}}

and its model's visitors say which value is which property, and which requests set it:

  get: /status    path: relays[0].on    write: PUT /relay/0    body: '{"on":{json}}'

A property without get comes from the device itself: hook: NAME in the Device, with a file that has a
secret, takes POST /hooks/{device}/{secret} at driver.hooks.`,
		Example: `  mapper-http                                     # the node on this host
  mapper-http read http://10.0.0.9/status relays[0].on
  mapper-http browse http://10.0.0.9/status --name relay --node node1 | edgebus apply -f -`,
		Table: protocolSettings,
		Driver: func(c configs.HTTPMapper, _ *mappers.Options) (mappers.Driver, error) {
			return New(Options{Hooks: c.Hooks, CredentialsDir: c.CredentialsDir, Timeout: c.Timeout}), nil
		},
		Commands: []*cobra.Command{browseCommand(stdout, stderr), readCommand(stdout)},
	}.Main(args, stdout, stderr)
}

func readCommand(out io.Writer) *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use: "read URL [PATH]", Short: "Print what a device answers, or a value in it", Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			var path jsonpath.Path
			if len(args) == 2 {
				var err error
				if path, err = jsonpath.Parse(args[1]); err != nil {
					return fmt.Errorf("%q %w", args[1], err)
				}
			}
			base, target, err := splitURL(args[0])
			if err != nil {
				return err
			}
			ctx, stop := commandContext(c)
			defer stop()
			answer, err := fetchAnswer(ctx, base, target, timeout)
			if err != nil {
				return cmd.Failed(err)
			}
			value, _, ok, err := (&jsonpath.Message{Source: target, Payload: answer}).Find(path)
			if err == nil && !ok {
				err = fmt.Errorf("the answer has nothing at %s", args[len(args)-1])
			}
			if err != nil {
				return cmd.Failed(err)
			}
			_, err = fmt.Fprintln(out, value)
			return cmd.Failed(err)
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long the device may take to answer")
	return c
}
