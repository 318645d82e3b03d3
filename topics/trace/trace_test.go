// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"strings"
	"testing"
)

const exampleParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestATraceparentIsReadAndWritten(t *testing.T) {
	c, ok := Parse(exampleParent)
	if !ok || !c.Sampled || c.String() != exampleParent || IDOf(exampleParent) != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("%s is read as %v (%v)", exampleParent, c, ok)
	}
	child := c.Child()
	if child.Trace != c.Trace || child.Span == c.Span || !child.Sampled {
		t.Errorf("the child of %v is %v", c, child)
	}
	if ValidTraceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-what-comes") != exampleParent {
		t.Error("a version to come isn't read as far as it is known")
	}
	if one, other := NewTrace(true), NewTrace(true); one.Trace == other.Trace || ValidTraceparent(one.String()) != one.String() {
		t.Errorf("two traces are %v and %v", one, other)
	}
}

func TestWhatIsNoTraceparentIsIgnored(t *testing.T) {
	for _, bad := range []string{
		"", "00", exampleParent[:54], exampleParent + "-", exampleParent + "0", strings.ToUpper(exampleParent),
		"ff" + exampleParent[2:], "0g" + exampleParent[2:], strings.Replace(exampleParent, "-", "_", 1), strings.Replace(exampleParent, "0af7", "0ag7", 1),
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
	} {
		if c, ok := Parse(bad); ok || ValidTraceparent(bad) != "" || IDOf(bad) != "" || c.String() != "" {
			t.Errorf("%q is read as %v", bad, c)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(exampleParent)
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-what-comes")
	f.Fuzz(func(t *testing.T, text string) {
		c, ok := Parse(text)
		if !ok {
			return
		}
		if again, ok := Parse(c.String()); !ok || again != c {
			t.Errorf("%q is %v, which is read as %v", text, c, again)
		}
	})
}
