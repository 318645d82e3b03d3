// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/password"
	"github.com/edgebus/edgebus/topics/resource"
)

//go:embed hub.yaml core.yaml agent.yaml discovery.yaml mapper-bacnet.yaml mapper-dmi.yaml mapper-http.yaml mapper-modbus.yaml mapper-mqtt.yaml mapper-opcua.yaml mapper-snmp.yaml mapper-virtual.yaml
var embeddedPages embed.FS

// SystemDir is where a program looks for its file when no flag names one.
const SystemDir = "/etc/edgebus"

// Error says which setting is wrong, and where it was set.
type Error struct {
	Key     string // link.retry.timeout
	Source  string // core.yaml:12, credential link.password, EDGECORE_LINK_RETRY_TIMEOUT, --link-retry-timeout, or default
	Message string
}

func (e *Error) Error() string { return e.Source + ": " + e.Key + ": " + e.Message }

// settingsChecker is implemented by options.
type settingsChecker interface {
	// complete fills in what depends on the host.
	complete() error
	// check reports each wrong setting by its key.
	check(report func(key, format string, args ...any))
}

// Load returns the options of program: its defaults, changed by file, then by systemd's credentials, then by the
// environment, then by the flags (nil: none) that were given. An empty file means that of File, if it exists. Each wrong
// setting is an *Error; all of them are reported, joined.
func Load[T any](program, file string, flags *pflag.FlagSet) (T, error) {
	var cfg T
	l, err := newLoader(program, &cfg, flags)
	if err != nil {
		return cfg, err
	}
	if file == "" {
		file = defaultFile(program)
	}
	if err := l.readFile(file); err != nil {
		return cfg, err
	}
	if err := l.readCredentials(); err != nil {
		return cfg, err
	}
	l.checkEnvironment()
	l.assign()
	if len(l.errs) == 0 {
		l.check(&cfg)
	}
	return cfg, errors.Join(l.errs...)
}

// Parse reads the command line of a program of that version that has settings and no commands. done is true if it was --help, --version,
// --print-config or --check-config, which are answered on out.
func Parse[T any](program, version string, args []string, out io.Writer) (cfg T, done bool, err error) {
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprintf(out, "%s\n\nUsage:\n  %s [flags]\n%s\nFlags:\n%s", programPurpose(program), program, commandUsage(program), flags.FlagUsages())
	}
	asked := flags.BoolP("version", "v", false, "print the version, and exit")
	if err := AddFlags[T](program, flags); err != nil {
		return cfg, false, err
	}
	if err := flags.Parse(NormalizeArgs(args)); errors.Is(err, pflag.ErrHelp) {
		return cfg, true, nil
	} else if err != nil {
		return cfg, false, err
	}
	if *asked {
		_, err := fmt.Fprintln(out, program, version)
		return cfg, true, err
	}
	if flags.NArg() > 0 {
		return cfg, false, fmt.Errorf("%s takes flags only, not %q", program, flags.Arg(0))
	}
	return LoadFlags[T](program, flags, out)
}

// NormalizeArgs replaces the words version and help by the flags of these names.
func NormalizeArgs(args []string) []string {
	if len(args) == 1 && (args[0] == "version" || args[0] == "help") {
		return []string{"--" + args[0]}
	}
	return args
}

// programPurpose is what a program is, in a line.
func programPurpose(program string) string {
	switch program {
	case "cloudhub":
		return "cloudhub is the hub, the cloud's side of the bus: an MQTT broker, the API and the links to all nodes."
	case "edgecore":
		return "edgecore is the core, which runs on every node: its MQTT broker, its devices' state and the link to the hub."
	default:
		return program + " is a program of the bus."
	}
}

// commandUsage are the usage lines of a program's commands.
func commandUsage(program string) string {
	if program != "cloudhub" && program != "edgecore" {
		return ""
	}
	join, take := "", ""
	if program == "cloudhub" {
		take = "  cloudhub take-authority DIRECTORY   give the authority of a stopped hub to one that is new, so that no node has to join again\n" +
			"  cloudhub rotate-key                 make a new key for Secrets, while it runs or is stopped\n" +
			"  cloudhub follow                     copy the log of another hub to this machine; edgebus follow runs it\n" +
			"  cloudhub takeover                   go on with such a copy in the place of a hub that is lost\n" +
			"  cloudhub cluster                    make three hubs one, and look after them; cloudhub cluster --help lists how\n"
	}
	if program == "edgecore" {
		join = "  edgecore join HUB --token TOKEN    join a hub, as edgebus invite prints it\n"
	}
	return join + fmt.Sprintf("  %[1]s health                     ask the one that runs on this host, with these settings, whether it is ready\n"+
		"  %[1]s check [DIRECTORY|FILE]     read the data of a stopped one, or a backup, and say what is damaged\n"+
		"  %[1]s backup FILE                back its data up, while it runs or is stopped\n"+
		"  %[1]s restore FILE               put a backup back\n", program) + take
}

// LoadFlags is Load with flags that AddFlags made and the caller parsed. done is true if there was --print-config or
// --check-config, which are answered on out.
func LoadFlags[T any](program string, flags *pflag.FlagSet, out io.Writer) (cfg T, done bool, err error) {
	file, err := flags.GetString("config")
	if err != nil {
		return cfg, false, err
	}
	if cfg, err = Load[T](program, file, flags); err != nil {
		return cfg, false, err
	}
	asked := map[string]bool{}
	for _, flag := range []string{"print-config", "show-secrets", "check-config"} {
		if asked[flag], err = flags.GetBool(flag); err != nil {
			return cfg, false, err
		}
	}
	switch {
	case asked["check-config"]:
		if err := checkFiles(cfg); err != nil {
			return cfg, false, err
		}
		if file == "" {
			file = defaultFile(program)
		}
		for _, text := range unsafeSettings(cfg, file) {
			fmt.Fprintln(out, "warning:", text)
		}
		_, err = fmt.Fprintln(out, "nothing is wrong with the settings of", program)
		return cfg, true, err
	case asked["print-config"]:
		return cfg, true, PrintSettings(out, program, cfg, asked["show-secrets"])
	case asked["show-secrets"]:
		return cfg, false, errors.New("--show-secrets is for --print-config")
	}
	return cfg, false, nil
}

// checkFiles reads the files that settings name, as the program does when it starts.
func checkFiles(cfg any) error {
	var errs []error
	for _, f := range structsIn(reflect.ValueOf(cfg)) {
		var err error
		switch v := f.(type) {
		case TLSListener:
			if v.Listen != "" && v.Cert != "" {
				_, err = v.Config()
			}
		case TLSClient:
			_, err = v.Config()
		case OIDC:
			_, err = v.Roots()
		case Identity:
			_, err = v.Secret()
		case Auth:
			if v.Topics != "" {
				_, err = acl.Open(acl.Options{File: v.Topics})
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// weakRounds is the number of hashing rounds below which a hash is reported as weak.
const weakRounds = 10_000

// unsafeSettings are about settings that are valid and unsafe: weak hashes, secrets that every user of the host can read, a
// hub that nobody can administer.
func unsafeSettings(cfg any, file string) (texts []string) {
	open := func(name, what string) {
		if info, err := os.Stat(name); name != "" && err == nil && info.Mode().Perm()&0o004 != 0 {
			texts = append(texts, fmt.Sprintf("%s holds %s and is readable by everybody on this host: chmod o-r %s", name, what, name))
		}
	}
	if h, ok := cfg.(Hub); ok && len(h.Auth.Users) == 0 && h.Auth.OIDC.Issuer == "" && !h.Anybody() {
		texts = append(texts, "auth.users: nobody is listed, and auth.anonymous lets nobody in without: this hub has no administrator; list a user with the role operator and nodes [\"*\"]")
	}
	secrets := false
	for _, f := range structsIn(reflect.ValueOf(cfg)) {
		switch v := f.(type) {
		case TLSListener:
			open(v.Key, "a private key")
		case TLSClient:
			open(v.Key, "a private key")
		case Identity:
			open(v.PasswordFile, "a password")
			secrets = secrets || v.Password != ""
		case Auth:
			for i, u := range v.Users {
				h, err := password.Parse(u.PasswordHash)
				secrets = secrets || u.PasswordHash != ""
				if err == nil && h.Rounds() < weakRounds {
					texts = append(texts, fmt.Sprintf("auth.users[%d].passwordHash: user %q: %d rounds of hashing are quickly tried by whoever reads the hash; "+
						"make one with edgebus passwd, which has more", i, u.Name, h.Rounds()))
				}
			}
		}
	}
	if secrets {
		open(file, "passwords or their hashes")
	}
	return texts
}

// structsIn are the structs in a struct, at any depth.
func structsIn(v reflect.Value) (all []any) {
	for i := range v.NumField() {
		if field := v.Field(i); field.Kind() == reflect.Struct {
			all = append(append(all, field.Interface()), structsIn(field)...)
		}
	}
	return all
}

// settingsLoader reads one program's settings. viper gets every value as text and decides which source wins, so that values are
// parsed by the same rules whatever their source.
type settingsLoader struct {
	prefix string // of the program's environment variables
	viper  *viper.Viper
	flags  *pflag.FlagSet
	leaves []settingField
	lines  map[string]string // key → file:line
	errs   []error
}

func newLoader(program string, cfg any, flags *pflag.FlagSet) (*settingsLoader, error) {
	l := &settingsLoader{prefix: envPrefix(program), viper: viper.New(), flags: flags, lines: map[string]string{}}
	l.leaves = leavesOf(reflect.ValueOf(cfg).Elem(), "")
	page, err := readPage(program)
	if err != nil {
		return nil, err
	}
	found, err := l.scan(page, "default")
	if err != nil {
		return nil, err
	}
	if len(l.errs) > 0 {
		return nil, errors.Join(l.errs...)
	}
	clear(l.lines)
	for _, f := range l.leaves {
		l.viper.SetDefault(f.key, found[f.key])
		if err := l.viper.BindEnv(f.key, l.envName(f.key)); err != nil {
			return nil, err
		}
		if flag := l.flag(f.key); flag != nil {
			if err := l.viper.BindPFlag(f.key, flag); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

// defaultFile is a program's file where none is named, or nothing if it does not exist.
func defaultFile(program string) string {
	name := File(program, "")
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return name // if it can't be read that is an error, instead of silent defaults
}

func (l *settingsLoader) readFile(name string) error {
	if name == "" {
		return nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	found, err := l.scan(text, name)
	if err != nil {
		return err
	}
	return l.viper.MergeConfigMap(nestKeys(found))
}

// readCredentials takes what systemd has handed the service (LoadCredential=, SetCredential=). A credential has the name of a setting, such as
// link.password: of one that names a file it is that file, of all others it holds the value.
func (l *settingsLoader) readCredentials() error {
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return nil
	}
	found := map[string]string{}
	for _, f := range l.leaves {
		name := filepath.Join(dir, f.key)
		if f.tag.Get("file") != "" {
			if _, err := os.Stat(name); err == nil {
				found[f.key], l.lines[f.key] = name, "credential "+f.key
			}
			continue
		}
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("configuration: credential %s: %w", f.key, err)
		}
		found[f.key], l.lines[f.key] = strings.TrimRight(string(text), "\r\n"), "credential "+f.key
	}
	return l.viper.MergeConfigMap(nestKeys(found))
}

// checkEnvironment reports misspelt variables, if they are close to a known one: Kubernetes sets variables with the same prefix for a service
// that is called like the program.
func (l *settingsLoader) checkEnvironment() {
	names := map[string]bool{}
	for _, f := range l.leaves {
		names[l.envName(f.key)] = true
	}
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, l.prefix) || names[name] {
			continue
		}
		for known := range names {
			if resource.EditDistance(name, known) <= 2 {
				l.fail(name, "environment", "unknown; did you mean %s?", known)
				break
			}
		}
	}
}

func (l *settingsLoader) assign() {
	for _, f := range l.leaves {
		if err := f.set(l.viper.GetString(f.key)); err != nil {
			l.fail(f.key, l.source(f.key), "%v", err)
		}
	}
}

func (l *settingsLoader) check(cfg any) {
	c, ok := cfg.(settingsChecker)
	if !ok {
		return
	}
	report := func(key, format string, args ...any) { l.fail(key, l.source(key), format, args...) }
	if err := c.complete(); err != nil {
		l.errs = append(l.errs, err)
		return
	}
	for _, f := range l.leaves {
		checkTags(f, report)
	}
	c.check(report)
}

func (l *settingsLoader) fail(key, source, format string, args ...any) {
	l.errs = append(l.errs, &Error{Key: key, Source: source, Message: fmt.Sprintf(format, args...)})
}

// source says where the value of key comes from. The key may have the index and field of a list's member behind it.
func (l *settingsLoader) source(key string) string {
	key, _, _ = strings.Cut(key, "[")
	if flag := l.flag(key); flag != nil && flag.Changed {
		return "--" + flag.Name
	}
	if os.Getenv(l.envName(key)) != "" {
		return l.envName(key)
	}
	if line, ok := l.lines[key]; ok {
		return line
	}
	return "default"
}

func (l *settingsLoader) flag(key string) *pflag.Flag {
	if l.flags == nil {
		return nil
	}
	return l.flags.Lookup(flagName(key))
}

// envPrefix is what a program's environment variables begin with: its own name, so that no program's variable means another's setting.
func envPrefix(program string) string { return upperName(program) + "_" }

// envName is the variable of a setting: its flag's name in upper case, after the program's.
func (l *settingsLoader) envName(key string) string { return l.prefix + upperName(flagName(key)) }

func upperName(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// envPrefixes are the prefixes of all programs' variables, those of mappers together, and of edgebus' own.
var envPrefixes = []string{"CLOUDHUB_", "EDGECORE_", "EDGEAGENT_", "EDGEDISCOVERY_", "MAPPER_", "EDGEBUS_"}

// WithoutSettings is an environment without the variables of the programs: for a program whose settings are all given to it otherwise.
func WithoutSettings(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(pair string) bool {
		return slices.ContainsFunc(envPrefixes, func(prefix string) bool { return strings.HasPrefix(pair, prefix) })
	})
}

var pageNames = map[string]string{"cloudhub": "hub", "edgecore": "core", "edgeagent": "agent", "edgediscovery": "discovery"}

// pageName is the name of a program's settings, as a file in SystemDir has it.
func pageName(program string) string { return cmp.Or(pageNames[program], program) }

// HasPage reports whether settings of a program are known.
func HasPage(program string) bool {
	_, err := readPage(program)
	return err == nil
}

// mapperPages are the pages of AddMapper, by program.
var mapperPages sync.Map

// AddMapper adds the settings of a mapper program that has no file here: those of every mapper, and its driver's own, which
// are YAML with a comment and a default for each.
func AddMapper(program, driver string) {
	const like = "mapper-virtual"
	text, _ := embeddedPages.ReadFile(like + ".yaml") // it is embedded
	page, _, _ := strings.Cut(string(text), "\ndriver:")
	page = strings.ReplaceAll(page, like, program)
	page = strings.Replace(page, "\nname: virtual\n", "\nname: "+strings.TrimPrefix(program, "mapper-")+"\n", 1)
	if driver = strings.TrimSpace(driver); driver == "" {
		mapperPages.Store(program, []byte(page))
		return
	}
	mapperPages.Store(program, []byte(page+"\ndriver:\n  "+strings.ReplaceAll(driver, "\n", "\n  ")+"\n"))
}

func readPage(program string) ([]byte, error) {
	if page, ok := mapperPages.Load(program); ok {
		return page.([]byte), nil
	}
	text, err := embeddedPages.ReadFile(pageName(program) + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("configuration: no program is called %q", program)
	}
	return text, nil
}

func parsePage(program string) (*yaml.Node, error) {
	page, err := readPage(program)
	if err != nil {
		return nil, err
	}
	root := new(yaml.Node)
	return root, yaml.Unmarshal(page, root)
}

// nestKeys turns a.b: x into a: {b: x}.
func nestKeys(flat map[string]string) map[string]any {
	root := map[string]any{}
	for key, value := range flat {
		at, parts := root, strings.Split(key, ".")
		for _, part := range parts[:len(parts)-1] {
			next, ok := at[part].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[part] = next
			}
			at = next
		}
		at[parts[len(parts)-1]] = value
	}
	return root
}

// AddFlags adds --config, --print-config, --check-config and one flag for each setting of T: --link-keepalive for
// link.keepalive. Passwords, and lists with passwords' hashes, have none because every user of the host could read them.
func AddFlags[T any](program string, flags *pflag.FlagSet) error {
	root, err := parsePage(program)
	if err != nil {
		return err
	}
	docs := map[string]string{}
	collectDocs(root.Content[0], "", docs)
	flags.String("config", "", "file of settings (default "+File(program, "")+", if it exists)")
	flags.Bool("print-config", false, "print the settings in force as YAML, and exit; passwords and their hashes are left out")
	flags.Bool("show-secrets", false, "with --print-config: print passwords and hashes, too, so that the output can be used as a file: keep it as safe")
	flags.Bool("check-config", false, "read the settings and the files that they name, say what is wrong with them, and exit")
	for _, f := range leavesOf(reflect.New(reflect.TypeFor[T]()).Elem(), "") {
		if f.isSecret() {
			continue
		}
		// A word in backquotes would be shown as the name of the flag's value.
		flag := flags.VarPF(&flagValue{kind: kindName(f), list: f.isList()}, flagName(f.key), "", strings.ReplaceAll(docs[f.key], "`", ""))
		if f.value.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}
	return nil
}

// flagName is the flag of a setting: mqtt.tls.clientCA is --mqtt-tls-client-ca.
func flagName(key string) string {
	var b strings.Builder
	for i, c := range key {
		switch upper := unicode.IsUpper(c); {
		case c == '.':
			b.WriteByte('-')
			continue
		case upper && i > 0 && unicode.IsLower(rune(key[i-1])):
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// flagValue keeps the text, which Load parses. A list's flag may be given several times, each with one item.
type flagValue struct {
	text, kind string
	list       bool
}

func (v *flagValue) String() string { return v.text }
func (v *flagValue) Type() string   { return v.kind }

func (v *flagValue) Set(text string) error {
	if v.list && v.text != "" && text != "" {
		text = v.text + "," + text
	}
	v.text = text
	if v.kind != "bool" {
		return nil
	}
	_, err := strconv.ParseBool(text) // viper reads any other word as false
	return err
}

// kindName is the type of a value in --help. Apart from bool it must be no type that viper knows: viper would convert the
// text, and turn what it can't read into zero.
func kindName(f settingField) string {
	if f.isList() {
		return "list"
	}
	switch f.value.Addr().Interface().(type) {
	case *time.Duration:
		return "time"
	case *Size:
		return "size"
	case *bool:
		return "bool"
	case *int, *float64:
		return "number"
	default:
		return "text"
	}
}

// collectDocs finds each setting's comment, which is its help.
func collectDocs(n *yaml.Node, prefix string, docs map[string]string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		key := prefix + name.Value
		if value.Kind == yaml.MappingNode {
			collectDocs(value, key+".", docs)
			continue
		}
		var words []string
		for line := range strings.Lines(name.HeadComment) {
			words = append(words, strings.Fields(strings.TrimPrefix(line, "#"))...)
		}
		doc := strings.Join(words, " ")
		if value.Value != "" {
			doc += " (default " + value.Value + ")"
		}
		docs[key] = doc
	}
}

// redactedText is printed instead of a secret.
const redactedText = "<redacted>"

// PrintSettings writes the settings of cfg as program's page has them: with the same
// comments, in the same order. Passwords and their hashes are left out, unless secrets are asked for.
func PrintSettings(w io.Writer, program string, cfg any, secrets bool) error {
	root, err := parsePage(program)
	if err != nil {
		return err
	}
	v := reflect.New(reflect.TypeOf(cfg)).Elem()
	v.Set(reflect.ValueOf(cfg))
	values := map[string]settingField{}
	for _, f := range leavesOf(v, "") {
		values[f.key] = f
	}
	if err := fillValues(root.Content[0], "", values, secrets); err != nil {
		return err
	}
	text, err := encodeYAML(root)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// fillValues puts values in the place of the page's defaults.
func fillValues(n *yaml.Node, prefix string, values map[string]settingField, secrets bool) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, at := prefix+n.Content[i].Value, n.Content[i+1]
		if at.Kind == yaml.MappingNode {
			if err := fillValues(at, key+".", values, secrets); err != nil {
				return err
			}
			continue
		}
		f, ok := values[key]
		if !ok {
			return fmt.Errorf("configuration: the page has %s, the options have not", key)
		}
		fresh := yaml.Node{}
		if err := fresh.Encode(f.shown(secrets)); err != nil {
			return err
		}
		*at = fresh
	}
	return nil
}

// shown is the value as it may be printed.
func (f settingField) shown(secrets bool) any {
	if f.secret && !secrets {
		return hideSecret(f.value.String())
	}
	switch v := f.value.Interface().(type) {
	case fmt.Stringer: // durations and sizes
		return v.String()
	case []User:
		shown := make([]User, len(v))
		for i, u := range v {
			if !secrets {
				u.PasswordHash = hideSecret(u.PasswordHash)
			}
			shown[i] = u
		}
		return shown
	default:
		return v
	}
}

func hideSecret(secret string) string {
	if secret == "" {
		return ""
	}
	return redactedText
}
