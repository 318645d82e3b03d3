package virtual

import (
	"io"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
)

// Main is the program mapper-virtual.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.Virtual]{
		Name:  "mapper-virtual",
		Short: "The mapper for simulated devices",
		Long: `mapper-virtual connects to a node's broker and simulates every Device of that node whose
protocol is "virtual". Properties that can be written keep what is wanted; the others move by
themselves, as their visitors say:

  generator: sine, random-walk, sawtooth or constant    period: 60s
  min, max:  between them                               value:  of constant, or at the start

Two commands are known: beep (once or twice, as the payload says) and reset.
A read-only temperature without a generator warms with power and brightness, as a lamp does.`,
		Example: `  mapper-virtual                                   # the node on this host
  mapper-virtual --server mqtt://10.0.0.7:2883 --name sim2
  mapper-virtual --print-config > /etc/edgebus/mapper-virtual.yaml

  mosquitto_pub -V 5 -q 1 -p 2883 -t v1/nodes/demo/devices/lamp/desired/power -m ON`,
		Driver: func(c configs.Virtual, o *mappers.Options) (mappers.Driver, error) {
			o.Collect = c.Interval
			return New(Options{}), nil
		},
	}.Main(args, stdout, stderr)
}
