package api

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
)

// What goes out as it is stored is what decoding it would have made of it, byte by byte, in every form.
func TestStoredObjectsAreNotDecoded(t *testing.T) {
	s := &server{Options: Options{Kinds: withDialects(Kinds()), Now: time.Now}, objects: objects.New(objects.Options{Reader: newHub(t).store})}
	all := samples(t)
	for i := range s.Kinds {
		k := &s.Kinds[i]
		if k.Sealed {
			continue
		}
		for _, sample := range all[k.storeKind()] {
			stored := s.storedSample(t, k, sample)
			if stored.Data == nil {
				continue // of another group
			}
			o, err := s.objects.Decode(stored)
			require.NoError(t, err)
			want, err := k.form(o)
			require.NoError(t, err)
			got, err := s.appendForm(nil, k, stored)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), k.APIVersion())
			whole, err := k.Typed(o)
			require.NoError(t, err)
			glance, err := s.decodeForTable(k, stored)
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

func (s *server) storedSample(t *testing.T, k *Kind, sample dict) (out store.Object) {
	ours := s.recordedKind(k)
	if sample["apiVersion"] != ours.APIVersion() {
		return out
	}
	o, _, err := ours.decode([]byte(text(t, sample)))
	require.NoError(t, err)
	created := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	o.Metadata.UID, o.Metadata.Generation, o.Metadata.CreationTimestamp = "a-uid", 3, &created
	o.DesiredMeta = json.RawMessage(`{"a":{"ver":1}}`)
	out, err = s.objects.Encode(store.Key{Kind: k.storeKind(), Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}, o)
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
		labelsOf(o.Data)
		for i := range kinds {
			kinds[i].appendForTable(nil, o)
			if out, ok := kinds[i].appendStored(nil, o); ok && valid {
				require.True(t, json.Valid(out), "%s", out)
			}
		}
	})
}
