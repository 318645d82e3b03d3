package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/configs/daemon/subprocess"
	"github.com/edgebus/edgebus/edge/agent/files"
	"github.com/edgebus/edgebus/edge/upgrade"
	"github.com/edgebus/edgebus/topics/resource"
)

// hookTimeout is how long a command may take for which nothing else is said.
const hookTimeout = 10 * time.Second

// commands are the programs that a hook may run, by name.
type commands map[string][]string

// allow says what is wrong with hooks: a command that the node does not allow, or a time-out that is none.
func (c commands) allow(where string, hooks []resource.Hook) error {
	for i, h := range hooks {
		at := fmt.Sprintf("%s[%d]", where, i)
		if _, ok := c[h.Run]; !ok {
			return failure{resource.FailedInvalid, fmt.Sprintf("%s.run: this node allows no command %q: list it in commands of its agent.yaml", at, h.Run)}
		}
		if _, err := timeout(h.Timeout); err != nil {
			return failure{resource.FailedInvalid, fmt.Sprintf("%s.timeout: %v", at, err)}
		}
	}
	return nil
}

func timeout(text string) (time.Duration, error) {
	if text == "" {
		return hookTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a duration of more than 0, such as 30s", text)
	}
	return d, nil
}

// dueNow reports whether one of a hook's conditions holds, or it has none.
func dueNow(h resource.Hook, changes []files.Change) bool {
	return len(h.If) == 0 || slices.ContainsFunc(h.If, func(c resource.HookCondition) bool {
		return slices.ContainsFunc(changes, func(ch files.Change) bool {
			below := ch.Path == c.Path || strings.HasPrefix(ch.Path, strings.TrimSuffix(c.Path, "/")+"/")
			return below && (len(c.Op) == 0 || slices.Contains(c.Op, string(ch.Op)))
		})
	})
}

// runAll runs those of a list's hooks that are due, in their order, until one fails.
func (c commands) runAll(ctx context.Context, where string, hooks []resource.Hook, changes []files.Change, env []string) error {
	for i, h := range hooks {
		if !dueNow(h, changes) {
			continue
		}
		limit, err := timeout(h.Timeout)
		if err != nil {
			return err
		}
		if err := c.run(ctx, h.Run, limit, env); err != nil {
			return failed(ctx, resource.FailedHook, fmt.Errorf("%s[%d]: %w", where, i, err))
		}
	}
	return nil
}

// run runs a command with the given environment, within a limit.
func (c commands) run(ctx context.Context, name string, limit time.Duration, env []string) error {
	argv := c[name]
	if len(argv) == 0 {
		return fmt.Errorf("this node allows no command %q", name)
	}
	if _, err := (subprocess.Command{Argv: argv, Env: env, Time: limit}).Run(ctx); err != nil {
		return fmt.Errorf("command %q: %w", name, err)
	}
	return nil
}

// upgradeCommandTime bounds a command of an upgrade, whose own time-out is usually shorter.
const upgradeCommandTime = time.Hour

// runUpgradeCommand runs an upgrade's own command.
func (a *agent) runUpgradeCommand(ctx context.Context, argv, env []string) error {
	name, err := a.commands.allows(argv)
	if err != nil {
		return err
	}
	return a.commands.run(ctx, name, upgradeCommandTime, append(environment(a.o.Config.Root, "upgrade", update{}), env...))
}

// allows is which of this node's commands an upgrade's is: by its name, or with exactly the arguments that it has here.
func (c commands) allows(argv []string) (name string, err error) {
	for name, run := range c {
		if slices.Equal(argv, run) || len(argv) == 1 && argv[0] == name {
			return name, nil
		}
	}
	return "", &upgrade.Failure{Reason: resource.UpgradeFailedRefused, Message: fmt.Sprintf("this node allows no command %q: list it in commands of its agent.yaml", strings.Join(argv, " "))}
}

// environment is what a command gets: nothing of the agent's own.
func environment(root, hook string, u update) []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/",
		"EDGEBUS_ROOT=" + root, "EDGEBUS_HOOK=" + hook, "EDGEBUS_RENDERED_VERSION=" + u.Spec.RenderedVersion,
	}
}
