// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"fmt"
	"strings"
	"testing"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/viewtest"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

func TestWhatAnEdgeNodeSays(t *testing.T) {
	viewtest.Run(t, viewtest.Options{Files: "testdata/*.txt", Print: printPayload, Read: readPayload, New: func() views.View {
		return New(Options{Group: "plant", EdgeNode: viewtest.Node, PrimaryHost: "scada"})
	}})
}

func TestWhatAnEdgeNodeSaysWithAliases(t *testing.T) {
	viewtest.Run(t, viewtest.Options{Files: "testdata/aliases/*.txt", Print: printPayload, Read: readPayload, New: func() views.View {
		return New(Options{Group: "plant", EdgeNode: viewtest.Node, Aliases: true})
	}})
}

var typeNames = map[sparkplug.DataType]string{
	sparkplug.TypeInt64: "Int64", sparkplug.TypeFloat: "Float", sparkplug.TypeDouble: "Double", sparkplug.TypeBoolean: "Boolean", sparkplug.TypeString: "String",
	sparkplug.TypeBytes: "Bytes",
}

// printPayload is a payload as the files have it: a line a metric.
func printPayload(m views.Message) string {
	p, err := sparkplug.Parse(m.Payload)
	if err != nil {
		return err.Error()
	}
	out := "without seq"
	if p.Seq >= 0 {
		out = fmt.Sprintf("seq=%d at %d", p.Seq, p.Timestamp)
	}
	for _, m := range p.Metrics {
		out += "\n  " + m.Name
		if m.HasAlias {
			out += fmt.Sprintf(" #%d", m.Alias)
		}
		if m.Type != sparkplug.TypeUnspecified {
			out += " " + typeNames[m.Type]
		}
		if text, err := m.Text(sparkplug.TypeUnspecified); err == nil {
			out += " = " + text
		}
		if m.Null {
			out += " null"
		}
		if m.Historical {
			out += " historical"
		}
		out += fmt.Sprintf(" at %d", m.Timestamp)
		list, _ := m.Properties()
		for _, property := range list {
			text, _ := property.Text()
			out += fmt.Sprintf(", %s %s", property.Key, text)
		}
	}
	return out
}

// readPayload makes a command of a metric, such as power=String:ON, or has a text as it is.
func readPayload(text string) []byte {
	name, value, ok := strings.Cut(text, "=")
	of, value, typed := strings.Cut(value, ":")
	if !ok || !typed {
		return []byte(text)
	}
	for typ, is := range typeNames {
		if is == of {
			m, _ := sparkplug.Value(typ, value)
			m.Name = name
			return sparkplug.Payload{Timestamp: 1, Seq: -1, Metrics: []sparkplug.Metric{m}}.Append(nil)
		}
	}
	return []byte(text)
}
