// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/agent/files"
	"github.com/edgebus/edgebus/edge/upgrade"
	"github.com/edgebus/edgebus/topics/resource"
)

// Main is the program edgeagent. It returns the exit code: 0, 1 when it failed, 2 when it was told something impossible, 3 when check could
// not check.
func Main(args []string, stdout, stderr io.Writer) int {
	if daemon.PrintVersion("edgeagent", configs.NormalizeArgs(args), stdout) {
		return 0
	}
	code := 0
	root := newCommand(&code, stdout, stderr)
	root.SetArgs(configs.NormalizeArgs(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		fmt.Fprintf(stderr, "edgeagent: %v\n", err)
		switch {
		case errors.As(err, new(checkFailedError)):
			return 3
		case errors.As(err, new(*commandError)):
			return 1
		}
		return 2
	}
	return code
}

// commandError is of a command that was understood and went wrong.
type commandError struct{ error }

func (e *commandError) Unwrap() error { return e.error }

// checkFailedError is why check can't say whether anything is damaged.
type checkFailedError struct{ error }

func newCommand(code *int, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "edgeagent", Short: "The agent, which makes this host what the node's spec says",
		Long: `edgeagent runs as root on a node, beside edgecore, and makes the host what the node's spec says: files, applications,
the OS image. All of a version, or nothing of it: what fails is rolled back, reported, and not tried again until it changes,
unless a full disk or the like was the cause, or retry asks for it.

It signs in at the Unix socket of edgecore, where root is the user agent. What a spec may do is decided by this node's own
settings: files.roots says where files may be, commands which programs hooks may run.`,
		Example: `  edgeagent                                       # run, as the unit edgeagent.service does
  edgeagent --print-config > /etc/edgebus/agent.yaml
  edgeagent --check-config                        # is anything wrong with the settings?
  edgeagent diff                                  # what would the node's spec change on this host?
  edgeagent diff spec.json --root /tmp/scratch    # and this one, below another directory?
  edgeagent status                                # what is applied, what failed, and why
  edgeagent retry                                 # try again what failed`,
		Version: daemon.Version(), Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, done, err := configs.LoadFlags[configs.Agent]("edgeagent", c.Flags(), stdout)
			if err != nil || done {
				return err
			}
			*code = runAgent(cfg, configs.Logger(stderr, cfg.Log))
			return nil
		},
	}
	root.Flags().SortFlags = false
	root.PersistentFlags().SortFlags = false
	if err := configs.AddFlags[configs.Agent]("edgeagent", root.PersistentFlags()); err != nil {
		root.RunE = func(*cobra.Command, []string) error { return err }
	}
	// with gives a command the settings in force.
	with := func(do func(context.Context, Options, []string) error) func(*cobra.Command, []string) error {
		return func(c *cobra.Command, args []string) error {
			cfg, done, err := configs.LoadFlags[configs.Agent]("edgeagent", c.Flags(), stdout)
			if err != nil || done {
				return err
			}
			if err := do(c.Context(), Options{Config: cfg, Log: zerolog.Nop()}.withDefaults(), args); err != nil {
				return &commandError{err}
			}
			return nil
		}
	}
	root.AddCommand(
		&cobra.Command{
			Use: "diff [FILE]", Short: "Print what a spec would change on this host, and change nothing", Args: cobra.MaximumNArgs(1),
			Long: `diff prints what a rendered spec would change on this host: files, and the hooks that would run. It changes nothing.
FILE is the spec in JSON, as the topic spec of the node has it, - for the standard input; without one it is the node's spec, from
the broker. A Secret that it refers to is taken from the broker. If the agent would refuse the spec, the reason is printed, and the
exit code is 1.`,
			RunE: with(func(ctx context.Context, o Options, args []string) error { return runDiff(ctx, o, args, stdout) }),
		},
		&cobra.Command{
			Use: "status", Short: "Print what is applied, what is being done, and what failed", Args: cobra.NoArgs,
			RunE: with(func(_ context.Context, o Options, _ []string) error { return runStatus(o, stdout) }),
		},
		&cobra.Command{
			Use: "retry", Short: "Have the agent try the version again that failed", Args: cobra.NoArgs,
			Long: `retry has the agent that runs here try the version of the spec again that failed last, when what made it fail has been mended:
within seconds, or when the agent is started. What failed for a full disk, for what stands in a file's place, or for a content that is not at the hub is
tried again without being asked.`,
			RunE: with(func(_ context.Context, o Options, _ []string) error { return requestRetry(o, stdout) }),
		},
		&cobra.Command{
			Use: "check", Short: "Read the agent's state, and say what is damaged", Args: cobra.NoArgs,
			Long: `check reads the state in data.dir, and says what is damaged or is not as the applied spec has it. It changes nothing.
The exit code is 0 if nothing is damaged, also if files on the host are not as the spec has them, 1 if something is damaged, 2 if
the command line or a setting is not valid, and 3 if it could not be checked, such as a directory that can't be read.`,
			RunE: with(func(ctx context.Context, o Options, _ []string) error { return runCheck(ctx, o, stdout) }),
		},
	)
	root.AddCommand(newUpgradeCommand(with, stdout))
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

// runAgent runs the agent. One that is to be replaced by another version ends, and runs again if that version fails.
func runAgent(cfg configs.Agent, log zerolog.Logger) (code int) {
	if upgrade.IsGuard() {
		upgrade.RunGuard(cfg.Upgrade.Trial.Timeout, log)
		return 0
	}
	for {
		var replace *upgrade.AgentReplacement
		code = daemon.Run("edgeagent", log, func(ctx context.Context, p daemon.Program) error {
			err := Run(ctx, Options{Config: cfg, Version: p.Version, Log: p.Log, Ready: p.Ready})
			if errors.As(err, &replace) {
				return nil
			}
			return err
		})
		if replace == nil {
			return code
		}
		if err := replace.Try(context.Background(), log); err != nil {
			log.Error().Err(err).Msg("edgeagent ends")
			return 1
		}
	}
}

// diffTimeout is how long diff waits for what the broker is to have.
const diffTimeout = 10 * time.Second

func runDiff(ctx context.Context, o Options, args []string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, diffTimeout)
	defer cancel()
	o.onHost()
	store, err := openFiles(o)
	if err != nil {
		return err
	}
	defer store.Close()
	a := assemble(o, store)
	if a.state, err = loadState(o.Config.Data.Dir); err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	if a.bus, err = newBus(fmt.Sprintf("edgeagent-diff-%d", os.Getpid()), o.Config.MQTT.Sockets(), o.Log, func() { signalChange(changed) }); err != nil {
		return err
	}
	go func() { _ = a.bus.mqtt.Run(ctx) }() // ends with ctx
	spec, err := a.specToCompare(ctx, args, changed)
	if err != nil {
		return err
	}
	if err := a.check(*spec); err != nil {
		return err
	}
	want, err := a.filesOf(*spec)
	if err != nil {
		return err
	}
	changes, err := store.Plan(ctx, files.Spec{
		Version: spec.RenderedVersion, Files: want, LeaveDrifted: spec.Drift == resource.DriftReport,
		Content: func(c resource.Content) (content io.ReadCloser, err error) {
			err = awaitChange(ctx, changed, func() (bool, error) {
				content, err = a.content(ctx, c)
				return !errors.Is(err, errWaiting), err
			})
			return content, err
		},
	})
	if err != nil {
		return err
	}
	printDiff(a, *spec, changes, out)
	return nil
}

// specToCompare is the spec of a file or, without one, of the broker.
func (a *agent) specToCompare(ctx context.Context, args []string, changed <-chan struct{}) (spec *resource.RenderedSpec, err error) {
	if len(args) == 0 {
		err = awaitChange(ctx, changed, func() (bool, error) {
			spec, err = a.bus.spec()
			return err != nil || spec != nil, err
		})
		if err == nil && spec == nil {
			err = errors.New("the broker has no spec of this node")
			if !a.bus.mqtt.Connected() {
				err = fmt.Errorf("there is no connection to the node's broker: no program listens at %s, or this user may not connect (mqtt.socket)", strings.Join(a.o.Config.MQTT.Sockets(), " or "))
			}
		}
		return spec, err
	}
	var text []byte
	if args[0] == "-" {
		text, err = io.ReadAll(os.Stdin)
	} else {
		text, err = os.ReadFile(args[0])
	}
	if err != nil {
		return nil, err
	}
	spec = new(resource.RenderedSpec)
	if err := json.Unmarshal(text, spec); err != nil {
		return nil, fmt.Errorf("%s is no rendered spec: %w", args[0], err)
	}
	return spec, nil
}

// awaitChange calls ask until it is done, whenever something has changed, and for the last time when ctx ends. Then its error is
// that of the last call.
func awaitChange(ctx context.Context, changed <-chan struct{}, ask func() (done bool, err error)) error {
	for {
		done, err := ask()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-changed:
		}
	}
}

func printDiff(a *agent, spec resource.RenderedSpec, changes []files.Change, out io.Writer) {
	if !a.state.wants(&spec) && len(changes) == 0 {
		fmt.Fprintln(out, "nothing would change")
		return
	}
	fmt.Fprintf(out, "version %s, after %s\n", spec.RenderedVersion, cmp.Or(a.state.Applied.RenderedVersion, "none"))
	for _, c := range changes {
		fmt.Fprintf(out, "%-8s %s\n", c.Op, c.Path)
	}
	for _, moment := range []string{"beforeUpdating", "afterUpdating"} {
		own, ofSpec := a.hooks.of(moment, specUpdate{Spec: spec})
		for _, h := range append(own, ofSpec...) {
			if isDue(h, changes) {
				fmt.Fprintf(out, "%-8s %s (hooks.%s)\n", "run", h.Run, moment)
			}
		}
	}
	for _, app := range spec.Applications {
		fmt.Fprintf(out, "%-8s %s (%s)\n", "start", app.Name, app.AppType)
	}
}

func runStatus(o Options, out io.Writer) error {
	s, err := loadState(o.Config.Data.Dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "applied:  %s\n", cmp.Or(s.Applied.RenderedVersion, "none"))
	if len(s.Unstarted) > 0 {
		fmt.Fprintf(out, "to start: %s\n", strings.Join(s.Unstarted, ", "))
	}
	if s.Update != nil {
		fmt.Fprintf(out, "updating: %s: %s\n", s.Update.Spec.RenderedVersion, s.Update.Step)
	}
	if s.Failed != nil {
		fmt.Fprintf(out, "failed:   %s, at %s: %s: %s\n", s.Failed.RenderedVersion, s.Failed.At, s.Failed.Reason, s.Failed.Message)
	}
	return nil
}

func requestRetry(o Options, out io.Writer) error {
	s, err := loadState(o.Config.Data.Dir)
	switch {
	case err != nil:
		return err
	case s.Failed == nil:
		fmt.Fprintln(out, "no version has failed")
		return nil
	}
	if err := datadir.WriteFile(filepath.Join(o.Config.Data.Dir, retryFileName), nil); err != nil {
		return err
	}
	fmt.Fprintf(out, "version %s is tried again\n", s.Failed.RenderedVersion)
	return nil
}

func runCheck(ctx context.Context, o Options, out io.Writer) error {
	if _, err := os.ReadDir(o.Config.Data.Dir); err != nil {
		return checkFailedError{fmt.Errorf("the agent's data can't be read (data.dir): %w", err)}
	}
	s, errState := loadState(o.Config.Data.Dir)
	damage, errUpgrade := upgrade.CheckState(o.Config.Data.Dir)
	store, errFiles := openFiles(o)
	if errFiles == nil {
		defer store.Close()
	}
	damages := []error{damage}
	for _, err := range []error{errState, errUpgrade, errFiles} {
		switch {
		case errors.As(err, new(stateDamagedError)), errors.As(err, new(files.DamagedError)):
			damages = append(damages, err)
		case err != nil:
			return checkFailedError{err}
		}
	}
	if err := errors.Join(damages...); err != nil {
		return err
	}
	drifted, err := store.Drift(ctx)
	if err != nil {
		return checkFailedError{err}
	}
	for _, d := range drifted {
		fmt.Fprintf(out, "%s is not as version %s has it: %s\n", d.Path, s.Applied.RenderedVersion, d.What)
	}
	_, err = fmt.Fprintf(out, "nothing is damaged: version %s is applied\n", cmp.Or(s.Applied.RenderedVersion, "none"))
	return err
}

// newUpgradeCommand is what the owner of a node says about upgrades, on the node.
func newUpgradeCommand(with func(func(context.Context, Options, []string) error) func(*cobra.Command, []string) error, out io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use: "upgrade", Short: "Hold and release upgrades of this node, and print how the last one went", Args: cobra.NoArgs,
		Long: `An upgrade is a version of the programs, settings of the core, or images to pull, as the hub orders it. What it may be is decided by
this node's own settings: upgrade.keys says who signs programs, upgrade.settings which settings of the core the hub may change.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		&cobra.Command{
			Use: "hold [REASON]", Short: "Begin no upgrade until it is released; one that has begun to change something goes on", Args: cobra.MaximumNArgs(1),
			RunE: with(func(_ context.Context, o Options, args []string) error {
				return upgrade.HoldUpgrades(o.Config.Data.Dir, strings.Join(args, " "))
			}),
		},
		&cobra.Command{
			Use: "release", Short: "Allow upgrades again, and the one that waits for the owner of the node", Args: cobra.NoArgs,
			RunE: with(func(_ context.Context, o Options, _ []string) error {
				what, err := upgrade.ReleaseUpgrade(o.Config.Data.Dir)
				switch {
				case err != nil:
					return err
				case what != "":
					fmt.Fprintf(out, "%s is released\n", what)
				default:
					fmt.Fprintln(out, "no upgrade waits")
				}
				return nil
			}),
		},
		&cobra.Command{
			Use: "status", Short: "Print which version runs, what is being done, and how the last upgrade went", Args: cobra.NoArgs,
			RunE: with(func(_ context.Context, o Options, _ []string) error {
				r, err := upgrade.LastReport(o.Config.Data.Dir)
				if err != nil {
					return err
				}
				fmt.Fprintf(out, "core:      %s\n", cmp.Or(r.Version, "none below "+o.Config.Upgrade.Dir))
				for _, line := range []struct{ name, text string }{
					{"held", r.Held},
					{"upgrade", strings.TrimPrefix(r.From+" to "+r.To, " to ")},
					{"step", r.Step},
					{"result", r.Result},
					{"reason", r.Reason},
					{"message", r.Message},
					{"output", r.Log},
				} {
					if line.text != "" {
						fmt.Fprintf(out, "%-10s %s\n", line.name+":", line.text)
					}
				}
				return nil
			}),
		},
	)
	return c
}
