// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	osuser "os/user"
	"slices"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/password"
)

func newMapper() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mapper",
		Short: "Give a mapper of this node a credential",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newMapperAdd())
	return cmd
}

// mapperAdd is the command line of edgebus mapper add.
type mapperAdd struct {
	name, local, passwordFile, config string
	protocols, devices                []string
	out                               io.Writer
}

func newMapperAdd() *cobra.Command {
	var m mapperAdd
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "List a mapper in the core's settings, with its protocols and devices",
		Long: `Run this on the node. It adds a user with the role mapper to auth.users of core.yaml, and prints what
to put into the mapper's settings. The core reads its users when it starts: restart it afterwards.

With --local the mapper needs no password: it signs in at the core's Unix socket, and the kernel says that it runs as
that user of the host. With --password-file a password is made and written to that file. With neither it is --local
edgebus-mapper-NAME, if the host has that user.`,
		Example: "  edgebus mapper add modbus --protocol modbus\n  edgebus mapper add virtual --protocol virtual --devices 'lamp-*' --password-file /etc/edgebus/virtual.password",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m.name, m.out = args[0], cmd.OutOrStdout()
			return m.run()
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&m.protocols, "protocol", nil, "protocols of its devices (default all)")
	flags.StringSliceVar(&m.devices, "devices", nil, "globs of its devices' names (default all of its protocols)")
	flags.StringVar(&m.local, "local", "", "the user of this host that the mapper runs as")
	flags.StringVar(&m.passwordFile, "password-file", "", "file for a new password, which must not exist")
	flags.StringVar(&m.config, "config", "", "file of the core's settings (default "+configs.File("edgecore", "")+")")
	cmd.MarkFlagsMutuallyExclusive("local", "password-file")
	return cmd
}

func (m mapperAdd) run() error {
	if !topics.ValidName(m.name) {
		return exitcode.Errorf(exitcode.Misused, "%q is no name of a mapper: use a-z, 0-9, and - or . in between", m.name)
	}
	if usual := "edgebus-mapper-" + m.name; m.local == "" && m.passwordFile == "" {
		if _, err := osuser.Lookup(usual); err != nil {
			return exitcode.Errorf(exitcode.Misused, "this host has no user %s: say with --local which user the mapper runs as, or where to write a password with --password-file", usual)
		}
		m.local = usual
	}
	file := configs.File("edgecore", m.config)
	u := configs.User{Name: m.name, Role: topics.RoleMapper, Local: m.local, Protocols: m.protocols, Devices: m.devices}
	if m.passwordFile != "" {
		secret := rand.Text()
		if err := writePasswordFile(m.passwordFile, secret+"\n"); err != nil {
			return err
		}
		u.PasswordHash = password.NewHash([]byte(secret))
	}
	if err := configs.AddUser[configs.Core]("edgecore", file, u); err != nil {
		if m.passwordFile != "" {
			err = errors.Join(err, os.Remove(m.passwordFile))
		}
		return err
	}
	cfg, err := configs.Load[configs.Core]("edgecore", file, nil)
	if err != nil {
		return err
	}
	return m.printNextSteps(file, cfg)
}

// writePasswordFile writes a file that only its owner can read.
func writePasswordFile(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return exitcode.Errorf(exitcode.Misused, "%s exists: a password file is not overwritten", name)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// printNextSteps says what is left to do.
func (m mapperAdd) printNextSteps(file string, cfg configs.Core) error {
	lines := []string{
		fmt.Sprintf("%s is a mapper in %s. The core reads that when it starts:", m.name, file),
		"  systemctl restart edgecore", "In the mapper's settings:", "  name: " + m.name,
	}
	if path, why := cfg.SocketPath(); m.local == "" {
		lines = append(lines, "  server: mqtt://"+cfg.MQTT.Listen, "  user: "+m.name, "  passwordFile: "+m.passwordFile,
			"The mapper must be able to read that file: give it to the user it runs as (chown).")
	} else if path != "" {
		lines = append(lines, "  server: unix://"+path)
	} else {
		lines = append(lines, "  server: there is no Unix socket ("+why+")")
	}
	if cfg.Anybody() {
		lines = append(lines, "Programs of this host can still connect without a credential, as a mapper of all devices: set auth.anonymous: never to end that.")
	} else if m.local == "" && !slices.ContainsFunc(cfg.Auth.Users, func(u configs.User) bool { return u.Name != m.name && u.PasswordHash != "" }) {
		lines = append(lines, "From then on every client needs a credential (auth.anonymous).")
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(m.out, l); err != nil {
			return err
		}
	}
	return nil
}
