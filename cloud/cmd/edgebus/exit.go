package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// Exit codes that scripts can trust. doctor and check say in their help what theirs are.
const (
	failed      = 1 // anything else
	misused     = 2 // the command line can't be understood
	notFound    = 3 // no such object, or kind
	refused     = 4 // not valid, not allowed, or somebody else changed it first
	unreachable = 5 // no answer from the hub
	late        = 6 // time was up before what was waited for
)

const exitCodes = `Exit codes: 0 done; 1 failed; 2 the command line can't be understood; 3 not found;
4 refused by the hub (not valid, not allowed, or changed by somebody else first);
5 the hub can't be reached; 6 time was up before what was waited for.`

// codedError is an error that knows its exit code.
type codedError struct {
	code int
	error
}

func (e codedError) Unwrap() error { return e.error }

func withCode(code int, format string, args ...any) error {
	return codedError{code, fmt.Errorf(format, args...)}
}

// codeOf is the one place where an error becomes an exit code.
func codeOf(err error) int {
	if code := exitCode(0); errors.As(err, &code) {
		return int(code)
	}
	var coded codedError
	if errors.As(err, &coded) {
		return coded.code
	}
	if errors.As(err, new(*client.Refused)) { // by a broker
		return refused
	}
	switch resource.KindOf(err) {
	case resource.NotFound:
		return notFound
	case resource.Invalid, resource.AlreadyExists, resource.Conflict, resource.Unauthorized, resource.Forbidden,
		resource.TooLarge, resource.Quota:
		return refused
	case resource.Unavailable:
		return unreachable
	}
	return failed
}

// tally counts what became of many objects, and says it with one exit code.
type tally struct {
	failures int
	code     int
}

// fail counts a failure. Failures of different kinds are just failures.
func (t *tally) fail(err error) {
	code := codeOf(err)
	if t.failures > 0 && t.code != code {
		code = failed
	}
	t.failures, t.code = t.failures+1, code
}

func (t *tally) err() error {
	if t.failures == 0 {
		return nil
	}
	return exitCode(t.code)
}

// noUse is whether there is no use in going on with many objects, and says how many are left.
func noUse(ctx context.Context, errs io.Writer, left int) bool {
	if ctx.Err() != nil && left > 0 {
		fmt.Fprintf(errs, "edgebus: not tried: %d more\n", left)
	}
	return ctx.Err() != nil
}
