// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
)

// Of one answer that becomes a model.
const (
	maxBrowsed  = 200 // values
	maxElements = 16  // elements of a list of objects
)

func browseCommand(out, progress io.Writer) *cobra.Command {
	var timeout time.Duration
	var name, node string
	c := &cobra.Command{
		Use: "browse URL", Short: "Write a Device and a DeviceModel of the values in what a device answers", Args: cobra.ExactArgs(1),
		Long: `browse makes a property of each value in the JSON that a device answers to GET: numbers are double, lists
of plain values are arrays, and of lists of objects each element has properties of its own. What can be set
isn't in an answer: write and body, and accessMode: ReadWrite, are added by hand.`,
		Example: "  mapper-http browse http://10.0.0.9/status --name relay --node node1 | edgebus apply -f -",
		RunE: func(c *cobra.Command, args []string) error {
			base, target, err := splitURL(args[0])
			if err != nil {
				return err
			}
			ctx, stop := commandContext(c)
			defer stop()
			answer, err := fetchAnswer(ctx, base, target, timeout)
			if err != nil {
				return cmd.Failed(err)
			}
			found := cmd.FoundDevice{Name: name, Node: node, Protocol: "http", Config: map[string]string{"url": base}}
			var left []string
			if found.Properties, left, err = browseAnswer(target, answer); err != nil {
				return cmd.Failed(err)
			}
			for _, text := range left {
				fmt.Fprintln(progress, "left out: "+text)
			}
			return cmd.Failed(cmd.WriteManifests(out, found))
		},
	}
	c.Flags().StringVar(&name, "name", "http", "the Device's name, and the model's")
	c.Flags().StringVar(&node, "node", "node1", "the Device's node")
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long the device may take to answer")
	return c
}

// splitURL takes the path off a URL: the Device has what is before it.
func splitURL(text string) (base, target string, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "", "", fmt.Errorf("%q is no URL such as http://10.0.0.9/status", text)
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String(), u.RequestURI(), nil
}

// browseAnswer makes a property of each value of an answer. left says what no property was made of.
func browseAnswer(target string, answer []byte) (list []cmd.FoundProperty, left []string, err error) {
	d := json.NewDecoder(bytes.NewReader(answer))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, nil, fmt.Errorf("GET %s: the answer is no JSON: %w", target, err)
	}
	b := answerBrowser{target: target}
	b.walk(tree, nil, "")
	if len(b.list) == 0 {
		return nil, nil, fmt.Errorf("GET %s: the answer has no value", target)
	}
	return b.list, b.left, nil
}

type answerBrowser struct {
	target string
	list   []cmd.FoundProperty
	left   []string
	full   bool
}

var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (b *answerBrowser) walk(value any, names []string, path string) {
	typ := "string"
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			at := path + "." + key
			quote := "'"
			if strings.Contains(key, quote) {
				quote = `"`
			}
			switch {
			case strings.ContainsAny(key, `\`) || strings.Count(key, quote) > 0:
				b.leave(path, fmt.Sprintf("the member %q, which a path can't name", key))
				continue
			case !plainKey.MatchString(key):
				at = path + "[" + quote + key + quote + "]"
			}
			b.walk(v[key], append(slices.Clone(names), key), at)
		}
		return
	case []any:
		if slices.ContainsFunc(v, isObject) {
			for i, element := range v[:min(len(v), maxElements)] {
				n := strconv.Itoa(i)
				b.walk(element, append(slices.Clone(names), n), path+"["+n+"]")
			}
			if len(v) > maxElements {
				b.leave(path, fmt.Sprintf("its elements from %d on", maxElements))
			}
			return
		}
		typ = "array"
	case json.Number:
		typ = "double"
	case bool:
		typ = "boolean"
	case nil:
		b.leave(path, "null, of which the type isn't known")
		return
	}
	if len(b.list) == maxBrowsed {
		b.leave(path, fmt.Sprintf("and what follows: there are more than %d values", maxBrowsed))
		b.full = true
		return
	}
	config := map[string]string{"get": b.target}
	if path != "" {
		config["path"] = "$" + path
	}
	b.list = append(b.list, cmd.FoundProperty{Name: cmp.Or(strings.Join(names, "-"), "value"), Type: typ, Config: config})
}

// leave notes what no property is made of.
func (b *answerBrowser) leave(path, why string) {
	if !b.full && len(b.left) < maxBrowsed {
		b.left = append(b.left, path+": "+why)
	}
}

func isObject(v any) bool {
	_, ok := v.(map[string]any)
	return ok
}

func commandContext(c *cobra.Command) (context.Context, context.CancelFunc) {
	ctx := c.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// fetchAnswer asks a device for one path.
func fetchAnswer(ctx context.Context, base, target string, timeout time.Duration) ([]byte, error) {
	opened, err := New(Options{Timeout: timeout}).Open(ctx, mappers.Device{Config: map[string]string{"url": base}})
	if err != nil {
		return nil, err
	}
	s := opened.(*session) //nolint:forcetypeassert // it is ours
	status, answer, err := s.do(ctx, http.MethodGet, target, "", "")
	if err == nil {
		err = verdict(http.MethodGet, target, status, answer)
	}
	return answer, err
}
