// SPDX-License-Identifier: Apache-2.0

package exitcode

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// Code ends the program with a code. All messages have been printed.
type Code int

func (e Code) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// OfTimeout returns the error that a command ends with. Its exit code is late if there was no answer because the timeout expired.
func OfTimeout(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || Of(err) != Unreachable {
		return err
	}
	if errors.As(err, new(Code)) {
		return Code(TimedOut) // the reason has been printed
	}
	return Errorf(TimedOut, "%w", err)
}

// IgnoreEnd returns the error of a watch; nil if it was interrupted or its timeout expired.
func IgnoreEnd(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// Exit codes, which are part of the interface. doctor and check have their own: see their help.
const (
	Failed      = 1 // anything else
	Misused     = 2 // the command line can't be understood
	NotFound    = 3 // no such object, or kind
	Refused     = 4 // not valid, not allowed, or changed by another client first
	Unreachable = 5 // no answer from the hub
	TimedOut    = 6 // the timeout expired
)

// Help lists the codes, for the help of commands.
const Help = `Exit codes: 0 done; 1 failed; 2 the command line can't be understood; 3 not found;
4 refused by the hub (not valid, not allowed, or changed by another client first);
5 the hub can't be reached; 6 the timeout expired first.`

// CodedError is an error that knows its exit code.
type CodedError struct {
	code int
	error
}

func (e CodedError) Unwrap() error { return e.error }

// Errorf is an error with an exit code.
func Errorf(code int, format string, args ...any) error {
	return CodedError{code, fmt.Errorf(format, args...)}
}

// Of is the one place where an error becomes an exit code.
func Of(err error) int {
	if code := Code(0); errors.As(err, &code) {
		return int(code)
	}
	var coded CodedError
	if errors.As(err, &coded) {
		return coded.code
	}
	if errors.As(err, new(*client.Refused)) { // MQTT
		return Refused
	}
	switch resource.KindOf(err) {
	case resource.NotFound:
		return NotFound
	case resource.Invalid, resource.AlreadyExists, resource.Conflict, resource.Unauthorized, resource.Forbidden,
		resource.TooLarge, resource.Quota:
		return Refused
	case resource.Unavailable:
		return Unreachable
	}
	return Failed
}

// Failures counts failures, and makes one exit code of them.
type Failures struct {
	Count int
	code  int
}

// AddFailure prints and counts a failure. The code of failures of several kinds is failed.
func (t *Failures) AddFailure(errs io.Writer, where string, err error) {
	fmt.Fprintf(errs, "edgebus: %s%v\n", where, err)
	code := Of(err)
	if t.Count > 0 && t.code != code {
		code = Failed
	}
	t.Count, t.code = t.Count+1, code
}

// Err is the error that the command ends with, or nil.
func (t *Failures) Err() error {
	if t.Count == 0 {
		return nil
	}
	return Code(t.code)
}

// Interrupted reports whether the command was interrupted, and prints how many objects are left.
func Interrupted(ctx context.Context, errs io.Writer, left int) bool {
	if ctx.Err() != nil && left > 0 {
		fmt.Fprintf(errs, "edgebus: not tried: %d more\n", left)
	}
	return ctx.Err() != nil
}
