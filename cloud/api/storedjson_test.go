// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// What goes out as it is stored is what decoding it would have made of it, byte by byte, in every form.
func TestStoredObjectsAreNotDecoded(t *testing.T) {
	e := &encoder{now: time.Now, objects: objects.New(objects.Options{Reader: newHub(t).store})}
	ow := &objectWriter{kinds: addDialects(Kinds())}
	all := readSamples(t)
	for i := range ow.kinds {
		k := &ow.kinds[i]
		if k.Sealed {
			continue
		}
		for _, sample := range all[k.storeKind()] {
			stored := storedSample(t, e, ow.recordedKind(k), sample)
			if stored.Data == nil {
				continue // of another group
			}
			o, err := e.objects.Decode(stored)
			require.NoError(t, err)
			want, err := k.form(o)
			require.NoError(t, err)
			got, err := e.appendForm(nil, k, stored)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), k.APIVersion())
			whole, err := k.Typed(o)
			require.NoError(t, err)
			glance, err := e.decodeForTable(k, stored)
			require.NoError(t, err)
			if k.Cells != nil {
				require.Equal(t, k.Cells(whole), k.Cells(glance), k.Name)
			}
			for field, value := range k.Fields {
				require.Equal(t, value(whole), value(glance), field)
				if k.Computed[field] {
					continue // its text is not looked for
				}
				r := fieldTerm{field: field, equal: true, values: []string{value(whole)}}
				r.quoted, _ = json.Marshal(value(whole))
				require.True(t, r.mayMatch(stored), field)
			}
		}
	}
}

func storedSample(t *testing.T, e *encoder, ours *Kind, sample jsonObject) (out store.Object) {
	if sample["apiVersion"] != ours.APIVersion() {
		return out
	}
	o, _, err := ours.decode([]byte(marshalText(t, sample)))
	require.NoError(t, err)
	created := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	o.Metadata.UID, o.Metadata.Generation, o.Metadata.CreationTimestamp = "a-uid", 3, &created
	o.DesiredMeta = json.RawMessage(`{"a":{"ver":1}}`)
	out, err = e.objects.Encode(store.Key{Kind: ours.storeKind(), Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}, o)
	require.NoError(t, err)
	out.Rev = 4711
	return out
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
			countValues(o.Data)
			duplicateFields(o.Data)
		}
		selectedBy(labels.SelectorFromSet(labels.Set{"a": "b"}), 1, o.Data)
		storedNode(&Kind{Kind: objects.Kind{Name: resource.KindDevice}}, o)
		for i := range kinds {
			kinds[i].appendForTable(nil, o)
			if out, ok := kinds[i].appendStored(nil, o); ok && valid {
				require.True(t, json.Valid(out), "%s", out)
			}
		}
	})
}

// Labels are found in a stored object as they are found when it is decoded, by any selector.
func TestSelectorsMatchStoredLabels(t *testing.T) {
	for _, set := range []labels.Set{nil, {}, {"site": "hall"}, {"site": "hall", "floor": ""}, {"x.io/site": "hall", "site": "yard"}, {"site": `a"b\\c<`}} {
		for _, text := range []string{
			"site=hall", "site!=hall", "site", "!site", "floor=", "site in (hall,yard)", "site notin (hall)", "x.io/site=hall,site=yard", "a!=1,b!=2,c!=3,d!=4,e!=5,site=hall", "",
		} {
			selector, err := labels.Parse(text)
			require.NoError(t, err)
			data, err := json.Marshal(jsonObject{"metadata": jsonObject{"name": "n", "labels": set}, "spec": jsonObject{"labels": jsonObject{"site": "no label"}}})
			require.NoError(t, err)
			terms, _ := selector.Requirements()
			matches, ok := selectedBy(selector, len(terms), data)
			require.True(t, ok)
			require.Equal(t, selector.Matches(set), matches, "%s of %v", text, set)
		}
	}
	_, ok := selectedBy(labels.Everything(), 0, []byte(`{"spec":{}}`))
	require.False(t, ok, "that is no object")
}
