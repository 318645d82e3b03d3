package main

import (
	"bytes"
	"crypto/ed25519"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/blake2b"
	"golang.org/x/crypto/scrypt"
	"golang.org/x/term"

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
		Example: "  edgebus artifact push --version v1.2.0 --secret-key minisign.key bin/edgecore-linux-arm64 bin/edgeagent-linux-arm64",
	}
	cmd.AddCommand(newArtifactPush())
	return cmd
}

func newArtifactPush() *cobra.Command {
	var o hub
	var version, name, keyFile, source string
	var format int
	cmd := &cobra.Command{
		Use:   "push --version VERSION --secret-key FILE PROGRAM...",
		Short: "Store programs in the hub, and make a signed Artifact of them",
		Long: `Store programs in the hub, and make an Artifact of them: a manifest with the size and SHA-256 of each, signed with a secret key
of minisign (minisign -G). The key does not leave this machine, and the hub has none. Nodes take a version only if their settings list the
public key (upgrade.keys).

A program is a file named edgecore, edgeagent, mapper-modbus, …; what follows the first -linux- is not part of its name. Its architecture is
read from its ELF header. With --source nothing is stored in the hub: nodes fetch the programs from there.

If the key is encrypted, its password is asked for, or read from the standard input.

` + exitCodes,
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
				Signature: key.sign(text, fmt.Sprintf("timestamp:%d\tfile:manifest.json\tversion:%s", time.Now().Unix(), version)),
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
				if _, err := push(cmd, o.Client, file); err != nil {
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
		fmt.Fprintf(cmd.OutOrStdout(), "artifact/%s created, signed by %s\n", a.Metadata.Name, key.name())
		return nil
	}
	f := cmd.Flags()
	f.StringVar(&version, "version", "", "version of the programs, such as v1.2.0")
	f.StringVar(&keyFile, "secret-key", "", "file with the secret key of minisign")
	f.StringVar(&name, "name", "", "name of the Artifact; default: the version")
	f.StringVar(&source, "source", "", "where nodes fetch the programs: https://host/path (/{architecture}/{name} is added), or oci://registry/repository")
	f.IntVar(&format, "store-format", 0, "newest format of a core's store that the version can read; 0: it isn't said")
	_, _ = cmd.MarkFlagRequired("version"), cmd.MarkFlagRequired("secret-key")
	o.flags(cmd)
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

// signingKey is a secret key of minisign.
type signingKey struct {
	id     [8]byte
	secret ed25519.PrivateKey
}

// The parts of a secret key of minisign, after its algorithm.
const (
	keyHeader = 2 + 2 + 2 + 32 + 8 + 8
	keySecret = 8 + ed25519.PrivateKeySize + 32
)

// readSigningKey reads the file that minisign -G writes, encrypted or not.
func readSigningKey(file string, in io.Reader, prompts io.Writer) (k signingKey, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return k, err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(lines[len(lines)-1]))
	if err != nil || len(raw) != keyHeader+keySecret || string(raw[:2]) != "Ed" {
		return k, errors.New("it is no secret key of minisign, such as minisign -G writes")
	}
	secret := raw[keyHeader:]
	switch kdf := string(raw[2:4]); kdf {
	case "Sc":
		password, err := keyPassword(in, prompts)
		if err != nil {
			return k, err
		}
		n, r, p := scryptParameters(binary.LittleEndian.Uint64(raw[38:]), binary.LittleEndian.Uint64(raw[46:]))
		if n > 1<<21 || p > 1<<10 {
			return k, errors.New("its password is protected by more work than this program does")
		}
		pad, err := scrypt.Key(password, raw[6:38], n, r, p, keySecret)
		if err != nil {
			return k, err
		}
		for i := range secret {
			secret[i] ^= pad[i]
		}
		sum := blake2b.Sum256(slices.Concat(raw[:2], secret[:8+ed25519.PrivateKeySize]))
		if !bytes.Equal(sum[:], secret[8+ed25519.PrivateKeySize:]) {
			return k, withCode(refused, "the password is wrong")
		}
	case "\x00\x00":
	default:
		return k, fmt.Errorf("it is protected by %q, which this version does not know", kdf)
	}
	copy(k.id[:], secret)
	k.secret = bytes.Clone(secret[8 : 8+ed25519.PrivateKeySize])
	return k, nil
}

// scryptParameters are those that libsodium derives from its two limits.
func scryptParameters(ops, memory uint64) (n, r, p int) {
	r = 8
	ops = max(ops, 32768)
	limit := memory / (uint64(r) * 128)
	if ops < memory/32 {
		limit = ops / (uint64(r) * 4)
	}
	log := 1
	for log < 63 && uint64(1)<<log <= limit/2 {
		log++
	}
	if p = 1; ops >= memory/32 {
		p = int(min(ops/4>>log, 0x3fffffff)) / r
	}
	return 1 << log, r, max(1, p)
}

func keyPassword(in io.Reader, prompts io.Writer) ([]byte, error) {
	if file, ok := in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		fmt.Fprint(prompts, "Password of the key: ")
		password, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(prompts)
		return password, err
	}
	return newPassword(in, prompts)
}

// sign makes a signature in minisign's format: the four lines of a .minisig file.
func (k signingKey) sign(text []byte, comment string) string {
	hash := blake2b.Sum512(text)
	signature := ed25519.Sign(k.secret, hash[:])
	global := ed25519.Sign(k.secret, append(bytes.Clone(signature), comment...))
	return fmt.Sprintf("untrusted comment: signature of an Edgebus artifact\n%s\ntrusted comment: %s\n%s\n",
		base64.StdEncoding.EncodeToString(slices.Concat([]byte("ED"), k.id[:], signature)), comment, base64.StdEncoding.EncodeToString(global))
}

// name is the key's id as minisign prints it: a little-endian number.
func (k signingKey) name() string { return fmt.Sprintf("%016X", binary.LittleEndian.Uint64(k.id[:])) }
