// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type outerForm struct {
	innerForm
	Name  string            `json:"name"`
	List  []innerForm       `json:"list"`
	Raw   json.RawMessage   `json:"raw"`
	Texts map[string]string `json:"texts"`
	Data  map[string][]byte `json:"data"`
	At    *time.Time        `json:"at"`
	none  int
}

type innerForm struct {
	Number *float64 `json:"number"`
	Whole  int      `json:"whole"`
	Truth  bool     `json:"truth"`
}

func parseTree(t *testing.T, text string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	return v
}

func TestWhatIsWrongIsFound(t *testing.T) {
	for text, want := range map[string][2]string{
		`{}`: {}, `{"name":"x","number":1.5,"list":[{"whole":1}],"raw":[1],"texts":{"a":"b"},"data":{"a":"eA=="},"at":"2026-11-21T10:00:00Z","other":1}`: {},
		`{"name":null,"list":null}`:               {},
		`[]`:                                      {"", "must be an object, not a list"},
		`{"name":7}`:                              {"name", "must be a string, not this number: write it in quotes"},
		`{"number":"x"}`:                          {"number", "must be a number, not a string"},
		`{"list":{}}`:                             {"list", "must be a list, not an object"},
		`{"list":[{},{},{"number":true}]}`:        {"list[2].number", "must be a number, not a boolean"},
		`{"list":[{"whole":1.5}]}`:                {"list[0].whole", "must be a whole number, not this number"},
		`{"list":[{"truth":"yes"}]}`:              {"list[0].truth", "must be true or false, not a string"},
		`{"texts":{"a":"b","port":1883}}`:         {"texts[port]", "must be a string, not this number: write it in quotes"},
		`{"data":{"a":"eA==","pass word":"%%%"}}`: {"data[pass word]", "must be base64: illegal base64 data at input byte 0"},
		`{"data":{"a":7}}`:                        {"data[a]", "must be a string in base64, not this number"},
		`{"at":"yesterday"}`:                      {"at", "must be a time, such as 2026-11-21T10:00:00Z, not a string"},
	} {
		at, why := FindMismatch(reflect.TypeFor[*outerForm](), parseTree(t, text))
		require.Equal(t, want, [2]string{at, why}, text)
	}
}

func TestUnknownFieldsAreFound(t *testing.T) {
	require.Empty(t, UnknownFields(reflect.TypeFor[outerForm](), parseTree(t, `{"name":"x","whole":1,"raw":{"any":1},"texts":{"any":"x"}}`)))
	require.Equal(t, []string{"list[1].Whole", "none", "texting"},
		UnknownFields(reflect.TypeFor[outerForm](), parseTree(t, `{"list":[{"whole":1},{"Whole":1}],"texting":{},"none":1}`)))
	require.Zero(t, outerForm{}.none)
}
