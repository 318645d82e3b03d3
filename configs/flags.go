package configs

import (
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// AddFlags gives flags --config, --print-config, --check-config and one flag for each setting of T:
// --link-keepalive for link.keepalive. Lists and passwords have none: the former
// don't fit, and the latter could be read by everybody on the host.
func AddFlags[T any](program string, flags *pflag.FlagSet) error {
	page, err := readPage(program)
	if err != nil {
		return err
	}
	var root yaml.Node
	if err := yaml.Unmarshal(page, &root); err != nil {
		return err
	}
	docs := map[string]string{}
	collectDocs(root.Content[0], "", docs)
	flags.String("config", "", "file of settings (default "+SystemDir+"/"+pageName(program)+".yaml, if it exists)")
	flags.Bool("print-config", false, "print the settings in force as YAML, and exit; passwords and their hashes are left out")
	flags.Bool("show-secrets", false, "with --print-config: print passwords and hashes, too, so that the output can be used as a file: keep it as safe")
	flags.Bool("check-config", false, "read the settings and the files that they name, say what is wrong with them, and exit")
	for _, f := range leavesOf(reflect.New(reflect.TypeFor[T]()).Elem(), "") {
		if f.secret || f.isList() {
			continue
		}
		flag := flags.VarPF(&flagValue{kind: kindName(f)}, flagName(f.key), "", docs[f.key])
		if f.value.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}
	return nil
}

func flagName(key string) string { return strings.ReplaceAll(key, ".", "-") }

// flagValue keeps the text: Load is who understands it.
type flagValue struct {
	text, kind string
}

func (v *flagValue) String() string { return v.text }
func (v *flagValue) Type() string   { return v.kind }

func (v *flagValue) Set(text string) error {
	v.text = text
	if v.kind != "bool" {
		return nil
	}
	_, err := strconv.ParseBool(text) // Viper would take any other word for false.
	return err
}

// kindName is what help calls a value. Apart from bool, it must be no type that
// viper knows: it would convert the text, and turn what it can't read into zero.
func kindName(f leaf) string {
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
		doc := strings.Join(strings.Fields(strings.ReplaceAll(name.HeadComment, "#", " ")), " ")
		if value.Value != "" {
			doc += " (default " + value.Value + ")"
		}
		docs[key] = doc
	}
}
