// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
)

// Main is the program mapper-modbus.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.Modbus]{
		Name:  "mapper-modbus",
		Short: "The mapper for Modbus devices",
		Long: `mapper-modbus connects to a node's broker and drives every Device of that node whose
protocol is "modbus". The Device says where it is:

  protocol: {type: modbus, config: {address: "tcp://10.0.0.5:502", unit: 1}}
  protocol: {type: modbus, config: {address: "rtu:///dev/ttyUSB0", unit: 7, baud: 19200, parity: even}}

and its model's visitors say which register is which property, or which point of SunSpec.
docs/models.md explains it. KubeEdge's spellings (HoldingRegister, offset, limit, isSwap, isRegisterSwap) are understood, too.
scan and read find out what a device has, and simulate is one to try it on.`,
		Example: `  mapper-modbus                                    # the node on this host
  mapper-modbus simulate --listen 127.0.0.1:1502   # in another window
  mapper-modbus scan 10.0.0.5 --node plant1        # a Device and a DeviceModel of what is there
  mapper-modbus --server mqtts://10.0.0.7:8883 --tls-ca ca.pem --user m1`,
		Table: protocolSettings,
		Driver: func(c configs.Modbus, o *mappers.Options) (mappers.Driver, error) {
			o.ProbeTimeout = c.ProbeTimeout
			return New(Options{Timeout: c.Timeout}), nil
		},
		Commands: []*cobra.Command{readCommand(stdout), scanCommand(stdout, stderr), simulateCommand(stdout)},
	}.Main(args, stdout, stderr)
}

func simulateCommand(stdout io.Writer) *cobra.Command {
	o := SimulatorOptions{Habits: &Habits{}}
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Serve simulated thermostats over Modbus TCP",
		Long: `simulate serves thermostats over Modbus TCP until it is interrupted. Each unit is a room that
cools and is heated:

  coil 0                may heat           discrete input 0      heats now
  holding register 0    setpoint, 0.1 °C   input register 0      temperature, 0.1 °C
  input registers 1-2   temperature, float32                3-4  energy in Wh, uint32
  holding registers 100-219  what was written to them; their own addresses at the start

A setpoint below 5 or above 35 °C is refused, as a real one would. With --habit it behaves as badly
as real devices do; several habits can be given:

` + habitsHelp(),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return cmd.Failed(runSimulator(c.Context(), o, stdout)) },
	}
	c.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:1502", "address to listen on; port 0 takes a free one")
	c.Flags().IntVar(&o.Units, "units", 1, "units 1 to this number answer")
	c.Flags().Float64Var(&o.Speed, "speed", 60, "how many times faster than the clock rooms warm up")
	c.Flags().BoolVar(&o.Sunspec, "sunspec", false, "each unit is a SunSpec inverter, too: models 1, 103, 120 and 160 from holding register 40000 on")
	c.Flags().Var(o.Habits, "habit", "how it misbehaves: NAME or NAME=VALUE, any number of times")
	c.Flags().StringVar(&o.DriveLog, "drive-log", "", "file that gets a line of JSON for each write")
	return c
}

func runSimulator(ctx context.Context, o SimulatorOptions, stdout io.Writer) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := NewSimulator(o)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, s.Addr())
	<-ctx.Done()
	return s.Close()
}
