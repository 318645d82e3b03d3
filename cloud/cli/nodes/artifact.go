// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"aead.dev/minisign"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

var artifacts = client.Kind{Group: resource.Group, Version: resource.Version, Name: resource.KindArtifact, Plural: "artifacts"}

func newArtifact() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "artifact",
		Short: "Make the signed bundle of programs that an upgrade needs",
		Long: `Make Artifacts: signed manifests of a version's programs, which Upgrades have nodes run. edgebus get artifacts lists them, and
edgebus delete removes them.`,
		Example: "  edgebus artifact key minisign.key\n  edgebus artifact push --version v1.2.0 --secret-key minisign.key bin/edgecore-linux-arm64 bin/edgeagent-linux-arm64",
	}
	cmd.AddCommand(newArtifactKey(), newArtifactPush())
	return cmd
}

func newArtifactKey() *cobra.Command {
	var password bool
	cmd := &cobra.Command{
		Use:   "key FILE",
		Short: "Make the key that signs Artifacts",
		Long: `Make a secret key of minisign in FILE, and print the public key, which the nodes list (upgrade.keys of the agent). The public key is written
to FILE with .pub in place of .key, too. Keep FILE off the hub and the nodes: whoever has it makes programs that they run.`,
		Example: "  edgebus artifact key minisign.key\n  edgebus artifact key --password minisign.key",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			public, secret, err := minisign.GenerateKey(nil)
			if err != nil {
				return err
			}
			text, err := secret.MarshalText()
			if password {
				var typed []byte
				if typed, err = terminal.ReadPassword(cmd.InOrStdin(), cmd.ErrOrStderr()); err == nil {
					text, err = minisign.EncryptKey(string(typed), secret)
				}
			}
			if err != nil {
				return err
			}
			shown, err := public.MarshalText()
			if err != nil {
				return err
			}
			if err := writeNewFile(args[0], append(text, '\n'), 0o600); err != nil {
				return err
			}
			if err := writeNewFile(strings.TrimSuffix(args[0], ".key")+".pub", append(shown, '\n'), 0o644); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), public)
			return err
		},
	}
	cmd.Flags().BoolVar(&password, "password", false, "encrypt the key with a password, which is asked for, or read from the standard input")
	return cmd
}

// writeNewFile writes a file that does not exist yet.
func writeNewFile(name string, text []byte, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func newArtifactPush() *cobra.Command {
	var o access.Hub
	var version, name, keyFile, source string
	var format int
	cmd := &cobra.Command{
		Use:   "push --version VERSION --secret-key FILE PROGRAM...",
		Short: "Store programs in the hub, and make a signed Artifact of them",
		Long: `Store programs in the hub, and make an Artifact of them: a manifest with the size and SHA-256 of each, signed with a secret key
of minisign (edgebus artifact key, or minisign -G). The key does not leave this machine, and the hub has none. Nodes take a version only if their settings list the
public key (upgrade.keys).

A program is a file named edgecore, edgeagent, mapper-modbus, …; what follows the first -linux- is not part of its name. Its architecture is
read from its ELF header. With --source nothing is stored in the hub: nodes fetch the programs from there.

If the key is encrypted, its password is asked for, or read from the standard input.

` + exitcode.Help,
		Example: "  edgebus artifact push --version v1.2.0 --secret-key minisign.key bin/edgecore-linux-* bin/edgeagent-linux-*",
		Args:    cobra.MinimumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		m := resource.Manifest{Version: version, StoreFormat: format}
		for _, file := range files {
			p, err := programOf(file)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			m.Programs = append(m.Programs, p)
		}
		slices.SortFunc(m.Programs, func(a, b resource.ArtifactProgram) int {
			return strings.Compare(a.Architecture+"/"+a.Name, b.Architecture+"/"+b.Name)
		})
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		if _, err := resource.ParseManifest(text); err != nil {
			return err
		}
		key, err := readSigningKey(keyFile, cmd.InOrStdin(), cmd.ErrOrStderr())
		if err != nil {
			return fmt.Errorf("%s: %w", keyFile, err)
		}
		a := resource.Artifact{
			TypeMeta: resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindArtifact}, Metadata: resource.Meta{Name: name},
			Spec: resource.ArtifactSpec{
				Manifest: string(text), Source: source,
				Signature: signArtifact(key, text, fmt.Sprintf("timestamp:%d\tfile:manifest.json\tversion:%s", time.Now().Unix(), version)),
			},
		}
		if name == "" {
			a.Metadata.Name = version
		}
		if err := a.Validate(); err != nil {
			return err
		}
		if source == "" {
			for _, file := range files {
				if _, err := pushBlob(cmd, o.Client, file); err != nil {
					return fmt.Errorf("%s: %w", file, err)
				}
			}
		}
		body, err := json.Marshal(a)
		if err != nil {
			return err
		}
		if _, err := o.Create(cmd.Context(), artifacts, "", body, client.WriteOptions{Strict: true}); err != nil {
			return err
		}
		for _, p := range m.Programs {
			fmt.Fprintf(cmd.OutOrStdout(), "%s  %s/%s  %d\n", p.Digest, p.Name, p.Architecture, p.Size)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "artifact/%s created, signed by %016X\n", a.Metadata.Name, key.ID())
		return nil
	}
	f := cmd.Flags()
	f.StringVar(&version, "version", "", "version of the programs, such as v1.2.0")
	f.StringVar(&keyFile, "secret-key", "", "file with the secret key of minisign")
	f.StringVar(&name, "name", "", "name of the Artifact; default: the version")
	f.StringVar(&source, "source", "", "where nodes fetch the programs: https://host/path (/{architecture}/{name} is added), or oci://registry/repository")
	f.IntVar(&format, "store-format", 0, "newest format of a core's store that the version can read; 0: it isn't said")
	_, _ = cmd.MarkFlagRequired("version"), cmd.MarkFlagRequired("secret-key")
	o.Register(cmd)
	return cmd
}

// architectures are those of ELF headers, as Go names them.
var architectures = map[elf.Machine]map[elf.Class]string{
	elf.EM_X86_64: {elf.ELFCLASS64: "amd64"}, elf.EM_AARCH64: {elf.ELFCLASS64: "arm64"}, elf.EM_ARM: {elf.ELFCLASS32: "arm"},
	elf.EM_386: {elf.ELFCLASS32: "386"}, elf.EM_RISCV: {elf.ELFCLASS64: "riscv64"},
}

// programOf describes a program for a manifest.
func programOf(file string) (p resource.ArtifactProgram, err error) {
	p.Name, _, _ = strings.Cut(filepath.Base(file), "-linux-")
	f, err := elf.Open(file)
	if err != nil {
		return p, fmt.Errorf("it is no program for Linux: %w", err)
	}
	machine, class := f.Machine, f.Class
	if err := f.Close(); err != nil {
		return p, err
	}
	if p.Architecture = architectures[machine][class]; p.Architecture == "" {
		return p, fmt.Errorf("it is for %s (%s), which nodes don't run on", machine, class)
	}
	p.Digest, p.Size, err = digestOf(file)
	return p, err
}

// readSigningKey reads the file that minisign -G writes, encrypted or not.
func readSigningKey(file string, in io.Reader, prompts io.Writer) (k minisign.PrivateKey, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return k, err
	}
	if !minisign.IsEncrypted(text) {
		if err := k.UnmarshalText(text); err != nil {
			return k, fmt.Errorf("it is no secret key of minisign, such as edgebus artifact key or minisign -G writes: %w", err)
		}
		return k, nil
	}
	password, err := keyPassword(in, prompts)
	if err != nil {
		return k, err
	}
	if k, err = minisign.DecryptKey(string(password), text); err != nil {
		return k, exitcode.Errorf(exitcode.Refused, "the password is wrong, or the key is damaged (%s)", err)
	}
	return k, nil
}

func keyPassword(in io.Reader, prompts io.Writer) ([]byte, error) {
	if file, ok := in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		fmt.Fprint(prompts, "Password of the key: ")
		password, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(prompts)
		return password, err
	}
	return terminal.ReadPassword(in, prompts)
}

// signArtifact makes a signature in minisign's format: the four lines of a .minisig file.
func signArtifact(k minisign.PrivateKey, text []byte, comment string) string {
	r := minisign.NewReader(bytes.NewReader(text))
	io.Copy(io.Discard, r) //nolint:errcheck // a reader of bytes doesn't fail
	return string(r.SignWithComments(k, comment, "signature of an Edgebus artifact"))
}
