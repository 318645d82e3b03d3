package resource

import (
	"regexp"
	"strings"
)

// What programs on a host are going to be given has a grammar of what is allowed: none of these texts can mean anything
// to a shell, be taken for an option, or name a file elsewhere.
var (
	// versionForm is Semantic Versioning 2.0.0, with or without a v; v1 and v1.10 are versions, too.
	versionForm = regexp.MustCompile(`^v?(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){0,2}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)
	// imageForm is a reference to an OCI image: registry and port, path, tag, digest.
	imageForm = regexp.MustCompile(`^((localhost|[A-Za-z0-9][A-Za-z0-9-]*(\.[A-Za-z0-9][A-Za-z0-9-]*)+)(:[0-9]{1,5})?/|[A-Za-z0-9][A-Za-z0-9-]*:[0-9]{1,5}/)?` +
		`[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
	// commandForm is an argument vector: words between single blanks.
	commandForm = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9._/+-]*( [A-Za-z0-9._/+:=,@%-]+)*$`)
	// revisionForm is a branch, a tag or a commit.
	revisionForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/@+-]*$`)
)

const (
	maxVersion  = 128
	maxImage    = 512
	maxCommand  = 1024
	maxRevision = 256
)

// checkForm checks a text against a grammar; an empty one is not there.
func checkForm(p *problems, field, text string, form *regexp.Regexp, most int, rule string) {
	if text != "" && (len(text) > most || !form.MatchString(text)) {
		p.add(field, "%s: must be %s, of at most %d characters", clip(text), rule, most)
	}
}

func checkVersion(p *problems, field, text string) {
	checkForm(p, field, text, versionForm, maxVersion, "a version such as v1.10.0 or 1.10.0-rc.1 (Semantic Versioning)")
}

func checkImage(p *problems, field, text string) {
	checkForm(p, field, text, imageForm, maxImage, "a reference to an image, such as quay.io/org/name:1.0 or name@sha256:…")
}

func checkCommand(p *problems, field, text string) {
	checkForm(p, field, text, commandForm, maxCommand,
		"a command and its arguments between single blanks, of letters, digits and ._/+:=,@%-: no shell reads it")
}

func checkRevision(p *problems, field, text string) {
	checkForm(p, field, text, revisionForm, maxRevision, "a branch, tag or commit, of letters, digits and ._/@+-, beginning with a letter or digit")
	if strings.Contains(text, "..") {
		p.add(field, "%s: a revision has no two dots in a row", clip(text))
	}
}
