package configs

import (
	"bytes"
	"fmt"
	"io"
	"reflect"

	"go.yaml.in/yaml/v3"
)

// redacted stands for what a setting holds but nobody should see.
const redacted = "<redacted>"

// Print writes the settings of cfg as program's page has them: with the same
// comments, in the same order. Passwords and their hashes are left out, unless secrets are asked for.
func Print(w io.Writer, program string, cfg any, secrets bool) error {
	page, err := readPage(program)
	if err != nil {
		return err
	}
	var root yaml.Node
	if err := yaml.Unmarshal(page, &root); err != nil {
		return err
	}
	v := reflect.New(reflect.TypeOf(cfg)).Elem()
	v.Set(reflect.ValueOf(cfg))
	values := map[string]leaf{}
	for _, f := range leavesOf(v, "") {
		values[f.key] = f
	}
	if err := fill(root.Content[0], "", values, secrets); err != nil {
		return err
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&root); err != nil {
		return err
	}
	_, err = out.WriteTo(w)
	return err
}

// fill puts values in the place of the page's defaults.
func fill(n *yaml.Node, prefix string, values map[string]leaf, secrets bool) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, at := prefix+n.Content[i].Value, n.Content[i+1]
		if at.Kind == yaml.MappingNode {
			if err := fill(at, key+".", values, secrets); err != nil {
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
func (f leaf) shown(secrets bool) any {
	if f.secret && !secrets {
		return hide(f.value.String())
	}
	switch v := f.value.Interface().(type) {
	case fmt.Stringer: // durations and sizes
		return v.String()
	case []User:
		shown := make([]User, len(v))
		for i, u := range v {
			if !secrets {
				u.PasswordHash = hide(u.PasswordHash)
			}
			shown[i] = u
		}
		return shown
	default:
		return v
	}
}

func hide(secret string) string {
	if secret == "" {
		return ""
	}
	return redacted
}
