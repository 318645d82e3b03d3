package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestYAMLMeansWhatItSays(t *testing.T) {
	for text, want := range map[string]string{
		"a: OFF\nb: yes\nc: true\nd: ~\n":    `{"a":"OFF","b":"yes","c":true,"d":null}`,
		"a: 2024-04-30T15:06:20Z\nb: 1.5\n":  `{"a":"2024-04-30T15:06:20Z","b":1.5}`,
		"1: x\ntrue: y\n":                    `{"1":"x","true":"y"}`,
		"name: one\nmore: {x: 1}\nname: two": `{"name":"two","more":{"x":1}}`,
		"'<<': x\na: '*b'\n":                 `{"<<":"x","a":"*b"}`,
		"":                                   `null`,
		"a: 18446744073709551615\nb: 0x10\n": `{"a":18446744073709551615,"b":16}`,
		"a: |+\n  x\n  y\n":                  `{"a":"x\ny\n"}`,
	} {
		got, err := fromYAML([]byte(text))
		require.NoError(t, err, text)
		require.JSONEq(t, want, string(got))
	}
	for _, text := range []string{
		"a: *nobody", "- *my-container*", "a: [", "\tx", "a: .nan",
		"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + strings.Repeat("a: &a [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n", 9),
		"x: &x\n  y: *x\n",
	} {
		_, err := fromYAML([]byte(text))
		require.Error(t, err, text)
	}
}
