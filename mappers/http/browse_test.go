// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/edgebus/edgebus/mappers"
)

// What browse writes reads the values that it was made of.
func TestBrowseWritesAModelOfAnAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/api/status?all=1" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"relays":[{"on":true},{"on":false}],"temp 1":{"it's":21.5},"name":"hall","levels":[1,2],"none":null,"empty":{}}`))
	}))
	t.Cleanup(server.Close)
	var out, errs bytes.Buffer
	require.Zero(t, Main([]string{"browse", server.URL + "/api/status?all=1", "--name", "relay", "--node", "n1"}, &out, &errs), errs.String())
	require.Contains(t, errs.String(), "left out: .none: null")
	var model struct {
		Spec struct {
			Properties       []struct{ Name, Type string }
			PropertyVisitors []struct {
				Visitors []struct {
					PropertyName string `yaml:"propertyName"`
					Config       map[string]string
				}
			} `yaml:"propertyVisitors"`
		}
	}
	require.Contains(t, out.String(), "nodeName: n1")
	first, _, _ := strings.Cut(out.String(), "\n---\n")
	require.NoError(t, yaml.Unmarshal([]byte(first), &model))
	dev := mappers.Device{Name: "relay", Config: map[string]string{"url": server.URL}}
	var names []string
	for i, p := range model.Spec.Properties {
		names = append(names, p.Name)
		dev.Properties = append(dev.Properties, mappers.Property{Name: p.Name, Type: mappers.Type(p.Type), Visited: true, Config: model.Spec.PropertyVisitors[0].Visitors[i].Config})
	}
	s, err := New(Options{Timeout: 5 * time.Second}).Open(t.Context(), dev)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	got, err := s.(mappers.BatchReader).ReadBatch(t.Context(), names)
	require.NoError(t, err)
	values := map[string]string{}
	for name, r := range got {
		require.NoError(t, r.Err, name)
		values[name] = r.Value
	}
	require.Equal(t, map[string]string{"relays-0-on": "true", "relays-1-on": "false", "temp-1-it-s": "21.5", "name": "hall", "levels": "[1,2]"}, values)

	require.Equal(t, 1, Main([]string{"browse", server.URL + "/nowhere"}, &out, &errs))
	require.Contains(t, errs.String(), "404")
	require.Equal(t, 2, Main([]string{"browse", "10.0.0.9/status"}, &out, &errs))
	require.Contains(t, errs.String(), "is no URL such as")
}

func TestBrowseOfALongAnswerIsBounded(t *testing.T) {
	many := strings.Repeat(`{"a":1,"b":2},`, 100000)
	list, left, err := browseAnswer("/", []byte(`{"x":[`+strings.TrimSuffix(many, ",")+`],"y":`+`{"k`+strings.Join(numberTexts(300), `":1,"k`)+`":1}}`))
	require.NoError(t, err)
	require.Len(t, list, maxBrowsed)
	require.Len(t, left, 2)
	_, _, err = browseAnswer("/", []byte(`<html>`))
	require.ErrorContains(t, err, "is no JSON")
	_, _, err = browseAnswer("/", []byte(`{}`))
	require.ErrorContains(t, err, "has no value")
}

func numberTexts(n int) (list []string) {
	for i := range n {
		list = append(list, strings.Repeat("x", i+1))
	}
	return list
}
