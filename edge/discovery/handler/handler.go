// SPDX-License-Identifier: Apache-2.0

// Package handler is the SDK of discovery handlers: the interface that every handler implements, and Main, which makes a program
// of one. The same code is linked into edgediscovery or runs by itself.
//
// It never decides what is done with a device: a handler lists the devices that exist, and chooses itself how often.
//
// A whole handler, which example_test.go runs, is
//
//	var Program = handler.Program{
//		Name: "knx", Short: "Finds KNX/IP routers", Shared: true,
//		New: func(env handler.Env) handler.Handler { return knx{env.Log} },
//	}
//
//	func (k knx) Discover(ctx context.Context, details string, _ map[string][]byte, found func([]handler.Device)) error {
//		var want settings
//		if err := handler.Details(details, &want); err != nil {
//			return err
//		}
//		return handler.RunEvery(ctx, want.Interval, func() error { … found(devices) … })
//	}
//
// and its command func main() { os.Exit(handler.Main(knx.Program, os.Args[1:], os.Stdout, os.Stderr)) }.
package handler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"

	"github.com/edgebus/edgebus/edge/discovery/wire"
)

// Handler finds devices of one protocol.
type Handler interface {
	// Discover looks for the devices that details ask for, until ctx ends. It calls found with the whole list whenever it may have
	// changed, and once when the first look is done, even if there is none; an unchanged list costs nothing. The list and its maps
	// belong to found from then on. found is called by one goroutine at a time.
	//
	// details is the text of the Configuration's spec.discoveryHandler.discoveryDetails, usually YAML. properties are the values of
	// its discoveryProperties, such as credentials: they must never be logged, nor put into an error or, without need, into a
	// Device.
	//
	// An error that InvalidArgument made says that details or properties are wrong: the Configuration says so, and the handler is asked
	// again when they change. After any other error, and after nil before ctx ends, it is asked again with back-off; the devices that it
	// found last are kept for a while. Several calls run at once, one for each Configuration.
	Discover(ctx context.Context, details string, properties map[string][]byte, found func([]Device)) error
}

// Device is a thing that was found.
type Device = wire.Device

// Mount is a file or directory of the host that a user of a device needs.
type Mount = wire.Mount

// DeviceSpec is a device file of the host that a user of a device needs.
type DeviceSpec = wire.DeviceSpec

// Program describes a handler.
type Program struct {
	// Name is what Configurations ask for in spec.discoveryHandler.name, such as onvif.
	Name string
	// Short is a sentence for --help.
	Short string
	// Shared says that several nodes may see the same device, because it is on the network and not part of a host.
	Shared bool
	// New makes the handler. It does nothing else: work begins in Discover.
	New func(Env) Handler
}

// Env is what a handler is given by the program that it is part of.
type Env struct {
	Log zerolog.Logger
	// Broker are the addresses of the node's broker, in the order in which they are tried, for a handler that finds devices there.
	Broker []string
	// Sys stands for /sys, and Dev for /dev, where they are not empty.
	Sys, Dev string
}

// invalidError is of details or properties that a handler can't use.
type invalidError struct{ error }

func (e invalidError) Unwrap() error { return e.error }

// InvalidArgument returns an error that says what is wrong with details or properties. The text is for the Configuration's user: it names
// the field and the rule.
func InvalidArgument(format string, args ...any) error {
	return invalidError{fmt.Errorf(format, args...)}
}

// IsInvalidArgument reports whether InvalidArgument made err or one that it wraps.
func IsInvalidArgument(err error) bool { return errors.As(err, new(invalidError)) }

// Resumer is a Handler of devices that announce themselves once, such as when they start: asked anew, it can't find what it has found
// before. A handler that is linked into edgediscovery is told of that.
type Resumer interface {
	Handler
	// Resume is Discover after known devices, which it has found for the same Configuration: with these details, with others or before a
	// restart. It lists those that these details ask for, unless it learns that they are gone.
	Resume(ctx context.Context, details string, properties map[string][]byte, known []Device, found func([]Device)) error
}

// tellKey is of what a context has for TellUser.
type tellKey struct{}

// WithTell is a context for Discover in which TellUser calls tell.
func WithTell(ctx context.Context, tell func(message string)) context.Context {
	return context.WithValue(ctx, tellKey{}, tell)
}

// TellUser says something about what is found that its Configuration's user should know, such as what of a device isn't understood and is left out,
// until something else is said; an empty message takes it back. It is called before the list that it is about.
func TellUser(ctx context.Context, message string) {
	if tell, ok := ctx.Value(tellKey{}).(func(string)); ok {
		tell(message)
	}
}

// Details reads details, which are YAML, into the struct to, over what is set in it. A field that to hasn't is an InvalidArgument,
// as everything else is that is wrong with them. No details leave to as it is. A field that is no text may be one in YAML: a
// Configuration's details that are fields are texts.
func Details(details string, to any) error {
	details, err := unquoteFields(details, reflect.TypeOf(to))
	if err != nil {
		return InvalidArgument("discoveryDetails: %w", err)
	}
	d := yaml.NewDecoder(strings.NewReader(details))
	d.KnownFields(true)
	if err := d.Decode(to); err != nil && !errors.Is(err, io.EOF) { // there are no details
		return InvalidArgument("discoveryDetails: %s", explainYAMLError(err, to))
	}
	return nil
}

var (
	unknownFieldPattern = regexp.MustCompile(`field (\S+) not found in type \S+`)
	wrongTypePattern    = regexp.MustCompile("cannot unmarshal !!\\w+ (`.*`) into (?:\\w+\\.)?(\\S+)")
	wrongFormPattern    = regexp.MustCompile(`cannot unmarshal !!(?:seq|map) into \S+`)
)

// explainYAMLError is what the YAML library says, without the names of Go's types, and with the fields that there are.
func explainYAMLError(err error, to any) string {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return err.Error()
	}
	var fields []string
	of := reflect.Indirect(reflect.ValueOf(to)).Type()
	for i := 0; of.Kind() == reflect.Struct && i < of.NumField(); i++ {
		if name, _, _ := strings.Cut(of.Field(i).Tag.Get("yaml"), ","); name != "" && name != "-" {
			fields = append(fields, name)
		}
	}
	all := make([]string, len(wrong.Errors))
	for i, text := range wrong.Errors {
		text = unknownFieldPattern.ReplaceAllString(text, "there is no field $1: it is one of "+strings.Join(fields, ", "))
		text = wrongTypePattern.ReplaceAllString(text, "$1 is no $2")
		all[i] = wrongFormPattern.ReplaceAllStringFunc(text, func(found string) string {
			if strings.Contains(found, "!!seq") {
				return "a list can't stand here"
			}
			return "a mapping can't stand here"
		})
	}
	return strings.Join(all, "; ")
}

// unquoteFields replaces texts by the YAML in them where the struct that they are read into has another type.
func unquoteFields(details string, to reflect.Type) (string, error) {
	for to.Kind() == reflect.Pointer {
		to = to.Elem()
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(details), &doc); err != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode || to.Kind() != reflect.Struct {
		return details, err
	}
	changed, fields := false, doc.Content[0].Content
	for i := 0; i+1 < len(fields); i += 2 {
		name, value := fields[i].Value, fields[i+1]
		var inner yaml.Node
		if value.Kind != yaml.ScalarNode || value.Tag != "!!str" || isTextField(to, name) || yaml.Unmarshal([]byte(value.Value), &inner) != nil || len(inner.Content) != 1 {
			continue
		}
		fields[i+1], changed = inner.Content[0], true
	}
	if !changed {
		return details, nil
	}
	out, err := yaml.Marshal(&doc)
	return string(out), err
}

// isTextField reports whether a field is one that a text is read into, or there is none.
func isTextField(t reflect.Type, name string) bool {
	for i := range t.NumField() {
		f := t.Field(i).Type
		tag, options, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if options == "inline" && !isTextField(f, name) {
			return false
		}
		if tag == name {
			return f.Kind() == reflect.String || f == reflect.TypeFor[time.Duration]() || reflect.PointerTo(f).Implements(reflect.TypeFor[yaml.Unmarshaler]())
		}
	}
	return true
}

// RunEvery calls look at once, and then again each time that interval has passed since it returned, until ctx ends, which is no error, or
// look fails.
func RunEvery(ctx context.Context, interval time.Duration, look func() error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if err := look(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		timer.Reset(interval)
	}
}
