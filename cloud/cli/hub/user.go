// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/password"
)

const hubProgram = "cloudhub"

// userFile is the hub's file of settings that the commands for users read and change.
type userFile struct{ named string }

func newUser() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "user",
		Short: "Add, list and remove the users in a hub's settings",
		Long: `Add, list and remove the users that auth.users of hub.yaml lists. Run this on the hub's machine, as who may write that file.
All else in the file stays, comments too, and what comes out is checked before the file is replaced.

The hub reads its users when it starts: what is added or removed takes effect when it is restarted (systemctl restart cloudhub),
which ends all connections for a moment. For programs there are tokens, which need no restart (edgebus token).`,
		Example: "  edgebus user add ann --role operator --nodes '*'\n  edgebus user list\n  edgebus user remove ann",
	}
	cmd.AddCommand(newUserAdd(), newUserList(), newUserRemove())
	return cmd
}

func newUserAdd() *cobra.Command {
	var f userFile
	var u configs.User
	var role string
	var byCertificate bool
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "List a user in the hub's settings, with a password or for a certificate",
		Long: `Ask for a password, and list the user in auth.users of hub.yaml with its hash. Without a terminal the password is the first line of
standard input. With --certificate the user has no password, and signs in with a certificate that mqtt.tls.clientCA or
http.tls.clientCA signs and whose common name is NAME.

` + userRestart,
		Example: "  edgebus user add ann --role operator --nodes '*'\n" +
			"  edgebus user add bob --role viewer --nodes 'plant-*' < bob.password\n  edgebus user add carol --role operator --nodes '*' --certificate",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			u.Name, u.Role = args[0], topics.Role(role)
			if !slices.Contains(userRoles, role) && role != string(topics.RoleMapper) { // of which the check of the settings says where it belongs
				return exitcode.Errorf(exitcode.Misused, "--role %q is none: it is %s", role, strings.Join(userRoles, ", "))
			}
			file, before, err := f.load()
			if err != nil {
				return err
			}
			if hasUser(before, u.Name) {
				return exitcode.Errorf(exitcode.Refused, "%q is listed already in %s", u.Name, file)
			}
			if !byCertificate {
				secret, err := terminal.ReadPassword(cmd.InOrStdin(), cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				u.PasswordHash = password.NewHash(secret)
			}
			if err := configs.AddUser[configs.Hub](hubProgram, file, u); err != nil {
				return err
			}
			_, after, err := f.load()
			if err != nil {
				return err
			}
			return printUserAdded(cmd.OutOrStdout(), file, u, before, after)
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "what the user may do: operator, viewer, node, controller, enroller or follower")
	cmd.Flags().StringSliceVar(&u.Nodes, "nodes", nil, "the user's nodes, as names and patterns: 'hall-*'; '*' for all. An operator or viewer needs them")
	cmd.Flags().BoolVar(&byCertificate, "certificate", false, "the user has no password, and signs in with a certificate")
	_ = cmd.MarkFlagRequired("role")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(userRoles, cobra.ShellCompDirectiveNoFileComp))
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	f.register(cmd)
	return cmd
}

func newUserList() *cobra.Command {
	var f userFile
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the users in the hub's settings",
		Long: `List the users of auth.users in hub.yaml: what they may do, for which nodes, and how they sign in. Passwords are not kept, and
their hashes not shown. People who sign in at an OpenID Connect provider, and tokens (edgebus token list), are not in it.`,
		Example: "  edgebus user list\n  edgebus user list -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, cfg, err := f.load()
			if err != nil {
				return err
			}
			list := []userRow{}
			rows := [][]string{{"NAME", "ROLE", "NODES", "SIGNS IN WITH"}}
			for _, u := range cfg.Auth.Users {
				row := userRow{Name: u.Name, Role: string(u.Role), Nodes: u.Nodes, SignsInWith: "certificate"}
				if u.PasswordHash != "" {
					row.SignsInWith = "password"
				}
				list = append(list, row)
				rows = append(rows, []string{
					terminal.Printable(row.Name, printer.WidestCell), row.Role, cmp.Or(terminal.Printable(strings.Join(row.Nodes, ","), printer.WidestCell), "-"), row.SignsInWith,
				})
			}
			return printer.Rows(cmd.OutOrStdout(), output, list, rows)
		},
	}
	printer.OutputFlag(cmd, &output, "", "table", "json")
	f.register(cmd)
	return cmd
}

var userRoles = []string{"operator", "viewer", "node", "controller", "enroller", "follower"}

// userRow is a user as it is listed.
type userRow struct {
	Name        string   `json:"name"`
	Role        string   `json:"role"`
	Nodes       []string `json:"nodes,omitempty"`
	SignsInWith string   `json:"signsInWith"`
}

func newUserRemove() *cobra.Command {
	var f userFile
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a user from the hub's settings",
		Long: `Remove a user from auth.users of hub.yaml. Until the hub is restarted the user may still sign in, and is still connected. Tokens that
the user has made are revoked when the hub starts. To keep a certificate out, which may also be a node's, list it in auth.deny.

` + userRestart,
		Example: "  edgebus user remove ann",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, before, err := f.load()
			if err != nil {
				return err
			}
			if !hasUser(before, args[0]) {
				return exitcode.Errorf(exitcode.NotFound, "%q is not listed in auth.users of %s; edgebus user list shows who is", terminal.Printable(args[0], 100), file)
			}
			if err := configs.RemoveUser[configs.Hub](hubProgram, file, args[0]); err != nil {
				return err
			}
			_, after, err := f.load()
			if err != nil {
				return err
			}
			return printUserRemoved(cmd.OutOrStdout(), file, args[0], before, after)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if _, cfg, err := f.load(); err == nil && len(args) == 0 {
				for _, u := range cfg.Auth.Users {
					names = append(names, u.Name)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	f.register(cmd)
	return cmd
}

const userRestart = "The hub reads its users when it starts: restart it afterwards (systemctl restart cloudhub)."

func (f *userFile) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.named, "config", "", "file of the hub's settings (default "+configs.File(hubProgram, "")+")")
}

// load reads the file, which must be there: one that these commands made would not belong to the hub's user.
func (f *userFile) load() (file string, cfg configs.Hub, err error) {
	file = configs.File(hubProgram, f.named)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return file, cfg, exitcode.Errorf(exitcode.NotFound, "there is no %s: run this on the hub's machine, and name its settings with --config if they are elsewhere; "+
			"for a new hub write the file first: listen: public is enough for nodes to join", file)
	}
	cfg, err = configs.Load[configs.Hub](hubProgram, file, nil)
	return file, cfg, err
}

func hasUser(cfg configs.Hub, name string) bool {
	return slices.ContainsFunc(cfg.Auth.Users, func(u configs.User) bool { return u.Name == name })
}

// printUserAdded says what has changed, and what is left to do.
func printUserAdded(out io.Writer, file string, u configs.User, before, after configs.Hub) error {
	lines := []string{fmt.Sprintf("%s has the role %s in %s.", u.Name, u.Role, file)}
	if before.Anybody() && !after.Anybody() {
		lines = append(lines, "After the restart nobody gets in without a credential, from this machine neither (auth.anonymous: auto).")
	}
	if before.Auth.Nodes == configs.Auto && len(before.Auth.Users) == 0 {
		lines = append(lines, "Nodes get in if they are registered, as Nodes (auth.nodes: auto).")
	}
	return printLines(out, append(lines, restartLines(file, after)...))
}

// printUserRemoved is the same, with who is left.
func printUserRemoved(out io.Writer, file, name string, before, after configs.Hub) error {
	lines := []string{fmt.Sprintf("%s is no user in %s any more. Until the restart %[1]s is let in.", name, file)}
	switch {
	case !before.Anybody() && after.Anybody():
		lines = append(lines, "After the restart programs of this machine get in without a credential, as operators of all nodes: set auth.anonymous: never to keep them out.")
	case !after.Anybody() && after.Auth.OIDC.Issuer == "" && !slices.ContainsFunc(after.Auth.Users, isAdministrator):
		lines = append(lines, "No operator of all nodes is left: edgebus user add NAME --role operator --nodes '*' lists one.")
	}
	return printLines(out, append(lines, restartLines(file, after)...))
}

func isAdministrator(u configs.User) bool {
	return u.Role == topics.RoleOperator && slices.Contains(u.Nodes, "*")
}

func restartLines(file string, cfg configs.Hub) (lines []string) {
	if cfg.Store.Engine == "nats" {
		lines = []string{"Each of several hubs lets in whom its own file lists: do the same with auth in that of the others, before the next one serves."}
	}
	if file != configs.SystemFile(hubProgram) {
		return append(lines, "The hub reads that when it starts: restart it.")
	}
	return append(lines, "The hub reads that when it starts:", "  systemctl restart cloudhub")
}

func printLines(out io.Writer, lines []string) error {
	_, err := fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}
