package api

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
)

// What goes out as it is stored is what decoding it would have made of it, byte by byte, in every form.
func TestStoredObjectsAreNotDecoded(t *testing.T) {
	s := &server{Options: Options{Kinds: withDialects(Kinds()), Now: time.Now}}
	all := samples(t)
	for i := range s.Kinds {
		k := &s.Kinds[i]
		if k.Sealed {
			continue
		}
		for _, sample := range all[k.record()] {
			stored := s.storedSample(t, k, sample)
			if stored.Data == nil {
				continue // of another group
			}
			o, err := s.fromStore(stored)
			require.NoError(t, err)
			want, err := k.form(o)
			require.NoError(t, err)
			got, err := s.appendForm(nil, k, stored)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), k.apiVersion())
			whole, err := k.typed(o)
			require.NoError(t, err)
			glance, err := s.look(k, stored)
			require.NoError(t, err)
			if k.Cells != nil {
				require.Equal(t, k.Cells(whole), k.Cells(glance), k.Name)
			}
			for field, value := range k.Fields {
				require.Equal(t, value(whole), value(glance), field)
				r := fieldTerm{field: field, equal: true, values: []string{value(whole)}}
				r.quoted, _ = json.Marshal(value(whole))
				require.True(t, r.stands(stored), field)
			}
		}
	}
}

func (s *server) storedSample(t *testing.T, k *Kind, sample dict) (out store.Object) {
	ours := s.kindNamed(k.record())
	if sample["apiVersion"] != ours.apiVersion() {
		return out
	}
	o, _, err := ours.decode([]byte(text(t, sample)))
	require.NoError(t, err)
	created := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	o.Metadata.UID, o.Metadata.Generation, o.Metadata.CreationTimestamp = "a-uid", 3, &created
	out = store.Object{Key: store.Key{Kind: k.record(), Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}, Rev: 4711, Status: o.Status}
	o.DesiredMeta = json.RawMessage(`{"a":{"ver":1}}`)
	out.Data, err = s.data(o)
	require.NoError(t, err)
	return out
}

// sameByShape checks that a body is understood in the same way at a glance as field by field.
func sameByShape(t *testing.T, k *Kind, raw string, o *object, unknown []string, err error) {
	slow := *k
	slow.shape = nil
	o2, unknown2, err2 := slow.decode([]byte(raw))
	require.Equal(t, fmt.Sprint(err), fmt.Sprint(err2))
	require.Equal(t, unknown, unknown2)
	if err == nil {
		want, err := o.encode()
		require.NoError(t, err)
		got, err := o2.encode()
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
}

func TestShapes(t *testing.T) {
	all := samples(t)
	for _, k := range Kinds() {
		for _, sample := range all[k.Name] {
			if sample["apiVersion"] != k.apiVersion() {
				continue
			}
			raw := text(t, sample)
			o, unknown, err := k.decode([]byte(raw))
			sameByShape(t, &k, raw, o, unknown, err)
		}
	}
	k := deviceKind()
	shape := k.shapeOf()
	require.True(t, shape.fits([]byte(lamp("", `,"desired":{"brightness":40}`))))
	for _, raw := range []string{
		`{"desiredMeta":{}}`, `{"Spec":{}}`, `{"spec":{"nodeName":"a","nodeName":"b"}}`, `{"spec":{"desired":{"a":{"b":1}}}}`,
		`{"metadata":{"managedFields":[]}}`, `{"spec":{"propertyVisitors":[{"none":1}]}}`, `{"spec":[]}`,
	} {
		require.False(t, shape.fits([]byte(raw)), raw)
	}
}

// A patch that is merged as text is merged as the library does it.
func TestMergedAsText(t *testing.T) {
	deep := func(n int) string {
		out := "1"
		for range n {
			out = `{"a":` + out + `}`
		}
		return out
	}
	for _, c := range []struct{ doc, patch string }{
		{`{"a":1,"b":{"c":2,"d":3}}`, `{"b":{"c":null,"e":{"f":null,"g":[1, 2]}},"h":"i"}`},
		{`{"a":[1,2],"b":"x"}`, `{"a":{"b":null},"b":null,"c":null}`},
		{`{}`, `{}`},
		{`{"a":{}}`, ` {"a": {"b" : 1} , "a" : {"c":2}}`},
		{`{"a":{"a":{"b":1}}}`, deep(20)},
	} {
		want, err := jsonpatch.MergePatch([]byte(c.doc), []byte(c.patch))
		require.NoError(t, err)
		got, ok := appendMerged(nil, []byte(c.doc), []byte(c.patch), 0)
		require.True(t, ok)
		require.JSONEq(t, string(want), string(got), c.patch)
	}
	for _, patch := range []string{deep(maxMerge + 2), `{"\u0061":1}`} {
		_, ok := appendMerged(nil, []byte(`{"a":1}`), []byte(patch), 0)
		require.False(t, ok, "left to the library")
	}
}

// Whatever the text, nothing is read beyond it; what is valid stays so.
func FuzzParts(f *testing.F) {
	f.Add(`{"metadata":{"name":"a","labels":{"x":"y"}},"spec":{"a":[{"b":"\""}]}}`)
	f.Add(`{"metadata":{}}{"spec":`)
	f.Add(`{"metadata":{"uid":"a\u`)
	kinds := Kinds()
	f.Fuzz(func(t *testing.T, text string) {
		o := store.Object{Data: []byte(text), Rev: 7}
		valid := json.Valid(o.Data)
		if valid {
			twiceIn(o.Data)
		}
		labelsOf(o.Data)
		for i := range kinds {
			kinds[i].glance(nil, o)
			if out, ok := kinds[i].appendStored(nil, o); ok && valid {
				require.True(t, json.Valid(out), "%s", out)
			}
		}
	})
}
