// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/subprocess"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/agent/files"
	"github.com/edgebus/edgebus/edge/upgrade"
	"github.com/edgebus/edgebus/topics/resource"
)

// hookTimeout is how long a command may take for which nothing else is said.
const hookTimeout = 10 * time.Second

// allowedCommands are the programs that a hook may run, by name.
type allowedCommands map[string][]string

// allow says what is wrong with hooks: a command that the node does not allow, or a time-out that is none.
func (c allowedCommands) allow(where string, hooks []resource.Hook) error {
	for i, h := range hooks {
		at := fmt.Sprintf("%s[%d]", where, i)
		if _, ok := c[h.Run]; !ok {
			return specFailure{resource.FailedInvalid, fmt.Sprintf("%s.run: this node allows no command %q: list it in commands of its agent.yaml", at, h.Run)}
		}
		if _, err := parseTimeout(h.Timeout); err != nil {
			return specFailure{resource.FailedInvalid, fmt.Sprintf("%s.timeout: %v", at, err)}
		}
	}
	return nil
}

func parseTimeout(text string) (time.Duration, error) {
	if text == "" {
		return hookTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a duration of more than 0, such as 30s", text)
	}
	return d, nil
}

// isDue reports whether one of a hook's conditions holds, or it has none.
func isDue(h resource.Hook, changes []files.Change) bool {
	return len(h.If) == 0 || slices.ContainsFunc(h.If, func(c resource.HookCondition) bool {
		return slices.ContainsFunc(changes, func(ch files.Change) bool {
			below := ch.Path == c.Path || strings.HasPrefix(ch.Path, strings.TrimSuffix(c.Path, "/")+"/")
			return below && (len(c.Op) == 0 || slices.Contains(c.Op, string(ch.Op)))
		})
	})
}

// hookProgress is how far the hooks of one moment of an update are. It is on disk before and after each command. So one that has
// succeeded is run once, although the agent is killed; one that was being run is run again, and told so: what it has done nobody knows.
type hookProgress struct {
	// Digest is the digest of the spec and the node's own hooks.
	Digest string `json:"digest,omitempty"`
	Moment string `json:"moment,omitempty"`
	// Done is how many of the node's own hooks and the spec's are through, and Begun says that the next one was begun.
	Done    int  `json:"done,omitempty"`
	Started bool `json:"started,omitempty"`
}

// run runs the hooks of a moment that are due, the node's own and then the spec's, until one fails.
func (r *hookRunner) run(ctx context.Context, moment string, u specUpdate) error {
	own, spec := r.of(moment, u)
	text, _ := json.Marshal(struct{ Spec, Own any }{u.Spec, own}) // both were read from JSON or YAML
	at := hookProgress{Digest: resource.DigestOf(text), Moment: moment}
	if had := r.state.Hooks; had.Digest == at.Digest && had.Moment == at.Moment {
		at = had
	}
	for i, h := range append(own[:len(own):len(own)], spec...) {
		if i < at.Done || !isDue(h, r.files.Changes()) {
			continue
		}
		env := commandEnvironment(r.config.Root, moment, u)
		if at.Started && at.Done == i {
			env = append(env, "EDGEBUS_HOOK_AGAIN=true")
		}
		at.Done, at.Started = i, true
		if err := r.save(func(s *agentState) { s.Hooks = at }); err != nil {
			return err
		}
		where := fmt.Sprintf("hooks.%s[%d]", moment, i-len(own))
		if i < len(own) {
			where = fmt.Sprintf("hooks.%s[%d] of agent.yaml", moment, i)
		}
		if err := r.commands.runHook(ctx, h, env); err != nil {
			return toFailure(ctx, resource.FailedHook, fmt.Errorf("%s: %w", where, err))
		}
		at.Done, at.Started = i+1, false
		if err := r.save(func(s *agentState) { s.Hooks = at }); err != nil {
			return err
		}
	}
	return nil
}

func (c allowedCommands) runHook(ctx context.Context, h resource.Hook, env []string) error {
	limit, err := parseTimeout(h.Timeout)
	if err != nil {
		return err
	}
	return c.run(ctx, h.Run, limit, env)
}

// run runs a command with the given environment, within a limit.
func (c allowedCommands) run(ctx context.Context, name string, limit time.Duration, env []string) error {
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

// runUpgrade runs an upgrade's own command.
func (c allowedCommands) runUpgrade(ctx context.Context, root string, argv, env []string) error {
	name, err := c.allows(argv)
	if err != nil {
		return err
	}
	return c.run(ctx, name, upgradeCommandTime, append(commandEnvironment(root, "upgrade", specUpdate{}), env...))
}

// allows is which of this node's commands an upgrade's is: by its name, or with exactly the arguments that it has here.
func (c allowedCommands) allows(argv []string) (name string, err error) {
	for name, run := range c {
		if slices.Equal(argv, run) || len(argv) == 1 && argv[0] == name {
			return name, nil
		}
	}
	return "", &upgrade.Failure{Reason: resource.UpgradeFailedRefused, Message: fmt.Sprintf("this node allows no command %q: list it in commands of its agent.yaml", strings.Join(argv, " "))}
}

// commandEnvironment is what a command gets: nothing of the agent's own.
func commandEnvironment(root, hook string, u specUpdate) []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/",
		"EDGEBUS_ROOT=" + root, "EDGEBUS_HOOK=" + hook, "EDGEBUS_RENDERED_VERSION=" + u.Spec.RenderedVersion,
	}
}

// hookRunner runs hooks, the node's own and those of specs.
type hookRunner struct {
	*journal
	config   configs.Agent
	commands allowedCommands
	files    *files.Store
}

// due are the hooks of a moment that an update causes: the node's own, and then the spec's.
func (r *hookRunner) due(moment string, u specUpdate) (due []resource.Hook) {
	own, spec := r.of(moment, u)
	for _, h := range append(own, spec...) {
		if isDue(h, r.files.Changes()) {
			due = append(due, h)
		}
	}
	return due
}

func (r *hookRunner) of(moment string, u specUpdate) (own, spec []resource.Hook) {
	c, s := r.config.Hooks, resource.Hooks{}
	if u.Spec.Hooks != nil {
		s = *u.Spec.Hooks
	}
	switch moment {
	case "beforeUpdating":
		return configuredHooks(c.BeforeUpdating), s.BeforeUpdating
	case "afterUpdating":
		return configuredHooks(c.AfterUpdating), s.AfterUpdating
	case "beforeRebooting":
		return configuredHooks(c.BeforeRebooting), s.BeforeRebooting
	}
	return configuredHooks(c.AfterRebooting), s.AfterRebooting
}

func configuredHooks(list []configs.Hook) (hooks []resource.Hook) {
	for _, h := range list {
		hook := resource.Hook{Run: h.Run, Timeout: h.Timeout}
		for _, c := range h.If {
			hook.If = append(hook.If, resource.HookCondition(c))
		}
		hooks = append(hooks, hook)
	}
	return hooks
}
