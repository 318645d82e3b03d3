// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// specRetry is when a version is tried again that failed.
type specRetry struct {
	*journal
	spec          string // its digest
	backoff.Retry        // due at once after the agent was started
}

// hostRetryBackoff is the wait before a version is tried again that failed because of what the host is like.
var hostRetryBackoff = backoff.Backoff{Min: time.Minute, Max: time.Hour}

// retryPoll is how often the agent looks whether somebody asks for that.
const retryPoll = 2 * time.Second

// retryFileName asks the agent to try again the version that failed.
const retryFileName = "retry"

// isHostFailure reports whether a version failed because of what may change without another version: room on a disk, what stands in a place, a
// blob that the hub doesn't have yet. Nothing of the host but files was changed by it, so that to try it again costs nothing.
func isHostFailure(f *resource.FailedVersion) bool {
	return slices.Contains([]string{resource.FailedWrite, resource.FailedPath, resource.FailedContent}, f.Reason)
}

// retries reports whether a version that failed is tried again now.
func (r *specRetry) retries(spec *resource.RenderedSpec) bool {
	if !r.state.failedBefore(spec) {
		return false
	}
	if os.Remove(filepath.Join(r.dir, retryFileName)) == nil {
		r.log.Info().Str("rendered_version", spec.RenderedVersion).Msg("a version that failed is tried again, as it was asked for on this node")
		return true
	}
	return isHostFailure(r.state.Failed) && r.retryWait(spec) <= 0
}

func (r *specRetry) retryWait(spec *resource.RenderedSpec) time.Duration {
	if r.spec != r.state.FailedDigest {
		return 0
	}
	return r.Left(hostRetryBackoff, r.now())
}

// retryIn is when it is to be asked again whether a version is tried again.
func (r *specRetry) retryIn(spec *resource.RenderedSpec) time.Duration {
	if !r.state.failedBefore(spec) {
		return time.Hour
	}
	if isHostFailure(r.state.Failed) {
		return max(min(r.retryWait(spec), retryPoll), time.Millisecond)
	}
	return retryPoll
}

func (r *specRetry) retryLater(spec resource.RenderedSpec) {
	if digest := specDigest(spec); r.spec != digest {
		r.spec, r.Retry = digest, backoff.Retry{}
	}
	r.Failed(hostRetryBackoff, r.now())
}
