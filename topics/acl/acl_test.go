// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/topics"
)

const mosquittoFile = `
# from mosquitto's manual, and one of everything
topic read public/#
user ann
topic write ann/out
topic read ann/in/+
topic both
topic deny ann/in/secret
topic literal/%u
user bob with space
topic readwrite  bob/#

pattern write sensor/%u/data
pattern read clients/%c/#
pattern deny locked/#
`

func TestMosquittosFile(t *testing.T) {
	var r Rules
	require.True(t, r.Allowed(Client{User: "ann"}, Write, "anything"), "without rules all is allowed")
	require.NoError(t, r.Parse(strings.NewReader(mosquittoFile)))
	for _, c := range []struct {
		user, id string
		access   Access
		topic    string
		want     bool
	}{
		{"", "c", Read, "public/x", true},
		{"", "c", Write, "public/x", false},
		{"ann", "c", Read, "public/x", false}, // that is for anonymous clients
		{"ann", "c", Write, "ann/out", true},
		{"ann", "c", Read, "ann/out", false},
		{"ann", "c", Read, "ann/in/door", true},
		{"ann", "c", Read, "ann/in/secret", false},
		{"ann", "c", Read, "ann/in", false},
		{"ann", "c", Read, "ann/in/a/b", false},
		{"ann", "c", Read, "both", true},
		{"ann", "c", Read, "literal/ann", false}, // %u stands for a name in patterns only
		{"ann", "c", Read, "literal/%u", true},
		{"ann", "c", Write, "both", true},
		{"ann", "c", Write, "sensor/ann/data", true},
		{"ann", "c", Write, "sensor/bob/data", false},
		{"ann", "c7", Read, "clients/c7", true},
		{"ann", "c7", Read, "clients/c7/a/b", true},
		{"ann", "c7", Read, "clients/c8/a", false},
		{"ann", "+", Read, "clients/c8/a", false}, // a name is never a wildcard
		{"ann", "a/b", Read, "clients/a/b", false},
		{"+", "c", Write, "sensor/bob/data", false},
		{"", "c", Write, "sensor//data", false},
		{"bob with space", "c", Read, "bob", true},
		{"bob with space", "c", Write, "bob/a/b", true},
		{"bob with space", "c", Write, "$SYS/bob", false},
		{"cid", "c", Write, "both", false},
	} {
		require.Equal(t, c.want, r.Allowed(Client{User: c.user, ID: c.id}, c.access, c.topic), "%+v", c)
	}
	for _, c := range []struct {
		user, filter string
		want         bool
	}{
		{"ann", "#", true},
		{"ann", "ann/#", true},
		{"ann", "+/in/door", true},
		{"ann", "ann/in/secret", false},
		{"ann", "other/#", false},
		{"ann", "locked/#", false},
		{"ann", "locked/a", false},
		{"ann", "$SYS/#", false},
		{"", "public", true},
		{"", "+", true},
		{"cid", "bob/#", false},
		{"ann", "clients/+/x", true},
	} {
		require.Equal(t, c.want, r.MaySubscribe(Client{User: c.user, ID: "c7"}, c.filter), "%+v", c)
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	var r Rules
	err := r.Parse(strings.NewReader("user\ntopik read a\ntopic read a/#/b\npattern x%u/a\ntopic\nuser ann\ntopic a"))
	for _, text := range []string{"line 1: user without a name", `line 2: "topik"`, "line 3:", "line 4:", "whole level", "line 5:"} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "line 7")
	require.Error(t, r.ReadFile("missing"))
}

func TestAUsersOwnLists(t *testing.T) {
	var r Rules
	require.NoError(t, r.Limit("ann", Write, []string{"site/%u/#"}))
	require.Error(t, r.Limit("ann", Write, []string{"v1/nodes/n1/#"}))
	ann, bob := Client{User: "ann", ID: "c"}, Client{User: "bob", ID: "c"}
	require.True(t, r.Allowed(ann, Write, "site/ann/x"))
	require.False(t, r.Allowed(ann, Write, "site/bob/x"))
	require.False(t, r.Allowed(ann, Write, "elsewhere"))
	require.True(t, r.Allowed(ann, Read, "elsewhere"), "there is no list of what ann may read")
	require.True(t, r.Allowed(bob, Write, "site/ann/x"), "others have no list")
	require.False(t, r.Applies("bob", Write))
	require.NoError(t, r.Limit("ann", Read, []string{}))
	require.False(t, r.Allowed(ann, Read, "site/ann/x"), "an empty list is no right")

	require.NoError(t, r.Parse(strings.NewReader("pattern readwrite all/#\nuser ann\ntopic read site/#")))
	require.False(t, r.Allowed(ann, Write, "all/x"), "a list replaces what the file says")
	require.False(t, r.MaySubscribe(ann, "site/#"))
	require.True(t, r.Allowed(bob, Write, "all/x"))
}

func TestAWildcardAtTheBeginningDeniesNoTopicWithADollar(t *testing.T) {
	var r Rules
	require.NoError(t, r.Parse(strings.NewReader("user ann\ntopic read $own/a\ntopic deny +/a\n")))
	ann := Client{User: "ann", ID: "c"}
	require.True(t, r.Allowed(ann, Read, "$own/a"))
	require.True(t, r.MaySubscribe(ann, "$own/a"), "what may be received may be subscribed to")
	require.False(t, r.MaySubscribe(ann, "own/a"))
}

// TestMatchingIsMQTTs compares with the matching of topics, and overlap and covers with what they mean.
func TestMatchingIsMQTTs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		level := rapid.SampledFrom([]string{"a", "b", "$c", ""})
		topic := strings.Join(rapid.SliceOfN(level, 1, 4).Draw(t, "topic"), "/")
		filter := func(name string) []string {
			f := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "$c", "", "+"}), 1, 4).Draw(t, name)
			if rapid.Bool().Draw(t, name+"#") {
				f[len(f)-1] = "#"
			}
			return f
		}
		a, b := filter("a"), filter("b")
		fa, fb := strings.Join(a, "/"), strings.Join(b, "/")
		if topic == "" || fa == "" || fb == "" {
			return
		}
		matches := func(levels []string) bool { return rule{levels: levels}.matches(Client{}, topic) }
		if !strings.HasPrefix(topic, "$") { // of what begins with $ a rule must name the $
			require.Equal(t, topics.Match(fa, topic), matches(a), "%s %s", fa, topic)
		}
		if matches(a) && matches(b) {
			require.True(t, filtersOverlap(a, b), "%s and %s have %s", fa, fb, topic)
		}
		if matches(b) && filterCovers(a, b) {
			require.True(t, matches(a), "%s covers %s, and not %s", fa, fb, topic)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(mosquittoFile, "ann", "c", "a/b")
	f.Fuzz(func(t *testing.T, text, user, id, topic string) {
		var r Rules
		if r.Parse(strings.NewReader(text)) != nil || topics.CheckTopic(topic) != nil {
			return
		}
		c := Client{User: user, ID: id}
		if r.Allowed(c, Read, topic) {
			require.True(t, r.MaySubscribe(c, topic), "what may be received may be subscribed to")
		}
	})
}

func TestAFileIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	write := func(text string) { // whole at once: an empty file, seen twice on its way, would be rules, too
		require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	_, err := Open(Options{File: file})
	require.ErrorContains(t, err, "auth.topics")
	write("topic read a")
	s, err := Open(Options{File: file, Users: []User{{Name: "ann", Publish: []string{"ann"}}}, Every: time.Millisecond})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 8), make(chan error)
	go func() { ended <- s.Run(ctx, func() { changed <- struct{}{} }) }()
	anybody := Client{ID: "c"}
	require.True(t, s.Rules().Allowed(anybody, Read, "a"))

	write("topic read a\ntopik read b")
	require.Eventually(t, func() bool { return s.Failing() != "" }, 10*time.Second, time.Millisecond)
	require.Contains(t, s.Failing(), "line 2")
	require.True(t, s.Rules().Allowed(anybody, Read, "a"), "the old rules stay")
	write("topic read bb")
	<-changed
	require.Empty(t, s.Failing())
	require.False(t, s.Rules().Allowed(anybody, Read, "a"))
	require.True(t, s.Rules().Allowed(anybody, Read, "bb"))
	require.True(t, s.Rules().Allowed(Client{User: "ann"}, Write, "ann"), "lists stay")

	require.NoError(t, os.Rename(file, file+".away"))
	require.Eventually(t, func() bool { return s.Failing() != "" }, 10*time.Second, time.Millisecond)
	require.True(t, s.Rules().Allowed(anybody, Read, "bb"))
	require.NoError(t, os.Rename(file+".away", file)) // the same file is back
	<-changed
	require.Empty(t, s.Failing())
	stop()
	require.NoError(t, <-ended)
}
