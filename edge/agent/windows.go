// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/schedule"
)

// windowPoll is how long an agent waits for a window at most before it looks at the clock again, which somebody may set.
const windowPoll = time.Minute

// awaitWindows says how long a spec has to wait for the times of its policy; 0: it can be applied. If it has to wait before it is applied, it is
// downloaded as soon as it may be.
func (a *agent) awaitWindows(ctx context.Context, spec resource.RenderedSpec) (wait time.Duration, err error) {
	if spec.UpdatePolicy == nil {
		return 0, nil
	}
	download, err := a.untilOpen("download", spec.UpdatePolicy.DownloadSchedule)
	if err != nil {
		return 0, err
	}
	update, err := a.untilOpen("update", spec.UpdatePolicy.UpdateSchedule)
	if err != nil {
		return 0, err
	}
	digest := specDigest(spec)
	have := a.state.Downloaded
	switch {
	case have.Digest != digest && download > 0:
		return a.waitForWindow(spec, "it is downloaded", download), nil
	case update <= 0:
		return 0, nil
	case have.Digest == digest && have.OSDone:
		return a.waitForWindow(spec, "it is downloaded, and applied", update), nil
	case have.Digest == digest && download > 0: // its OS image could not be downloaded, and is left to the switch
		wait := a.waitForWindow(spec, "it is downloaded but for its OS image, and applied", update)
		return min(wait, download), nil
	case have.Digest != digest:
		a.progress(spec.RenderedVersion, stepStage, nil)
		if err = a.download(ctx, spec); err == nil {
			err = a.save(func(s *agentState) { s.Downloaded = downloadedSpec{Digest: digest, OS: have.OS} })
		}
	default:
		wait, err = a.downloadOS(ctx, spec, digest, update)
	}
	if wait > 0 || err != nil {
		return min(wait, update), err
	}
	return a.awaitWindows(ctx, spec) // it may have taken a while
}

// failedDownload is a spec whose OS image could not be downloaded.
type failedDownload struct {
	spec string // digest
	backoff.Retry
}

// downloadRetry is the wait before the download of an OS image that failed is tried again.
var downloadRetry = backoff.Backoff{Min: 10 * time.Second, Max: 10 * time.Minute}

// downloadOS downloads the OS image of a spec whose other contents were downloaded. An image that can't be downloaded before the update's
// window is left to the switch. wait is the time until the next attempt.
func (a *agent) downloadOS(ctx context.Context, spec resource.RenderedSpec, digest string, update time.Duration) (wait time.Duration, err error) {
	if wait := a.osDownload.Left(downloadRetry, a.now()); wait > 0 && a.osDownload.spec == digest {
		return min(wait, windowPoll), nil
	}
	image := ""
	if spec.OS != nil && a.image.os != nil {
		image = spec.OS.Image
	}
	current, cancel := a.untilSuperseded(ctx, spec)
	defer cancel()
	a.image.discard(current, image)
	done := false
	if image != "" {
		a.progress(spec.RenderedVersion, stepStage, fmt.Errorf("the OS image %s is downloaded", image))
		done, err = a.image.fetch(current, image)
	}
	switch {
	case current.Err() != nil:
		return 0, context.Cause(current)
	case err != nil:
		if a.osDownload.spec != digest {
			a.osDownload = failedDownload{spec: digest}
		}
		wait = a.osDownload.Failed(downloadRetry, a.now())
		a.log.Warn().Err(err).Str("image", image).Dur("retry_in", wait).Msg("an OS image can't be downloaded before the update's window")
		a.progress(spec.RenderedVersion, stepWindow, fmt.Errorf("it is applied from %s on; until then the download of its OS image is tried again: %w",
			a.now().Add(update).UTC().Truncate(time.Second).Format(time.RFC3339), err))
		return min(wait, windowPoll), nil
	}
	if !done {
		image = ""
	}
	return 0, a.save(func(s *agentState) { s.Downloaded = downloadedSpec{Digest: digest, OSDone: true, OS: image} })
}

// untilOpen is how long it takes until a window opens; 0 or less: it is open.
func (a *agent) untilOpen(what string, s *resource.UpdateSchedule) (time.Duration, error) {
	if s == nil {
		return 0, nil
	}
	w, err := schedule.Parse(*s, schedule.Local)
	if err != nil {
		return 0, specFailure{resource.FailedInvalid, fmt.Sprintf("updatePolicy.%sSchedule: %v", what, err)}
	}
	now := a.now()
	at := w.Open(now)
	if at.IsZero() {
		return 0, specFailure{resource.FailedInvalid, fmt.Sprintf("updatePolicy.%sSchedule: %q never comes again", what, s.At)}
	}
	return at.Sub(now), nil
}

func (a *agent) waitForWindow(spec resource.RenderedSpec, what string, wait time.Duration) time.Duration {
	at := a.now().Add(wait).UTC().Truncate(time.Second)
	a.progress(spec.RenderedVersion, stepWindow, fmt.Errorf("%s from %s on", what, at.Format(time.RFC3339)))
	return min(wait, windowPoll)
}

// download has the core download a spec's contents, and the engine pull its images. An image that can't be pulled is left to the start of
// its application, which may know how.
func (a *agent) download(ctx context.Context, spec resource.RenderedSpec) error {
	if err := a.check(spec); err != nil {
		return err
	}
	ctx, cancel := a.untilSuperseded(ctx, spec)
	defer cancel()
	lists := [][]resource.RenderedFile{spec.Files}
	var images []string
	for _, app := range spec.Applications {
		lists, images = append(lists, app.Files), append(images, app.Images...)
	}
	for _, list := range lists {
		for _, f := range list {
			if f.Digest == "" {
				continue
			}
			content, err := a.content(ctx, f.Content)
			if err == nil {
				_, err = io.Copy(io.Discard, content)
				err = errors.Join(err, content.Close())
			}
			if err != nil {
				return toFailure(ctx, resource.FailedWrite, fmt.Errorf("%s: %w", f.Path, err))
			}
		}
	}
	for _, image := range images {
		if a.o.pull == nil {
			break
		}
		a.progress(spec.RenderedVersion, stepStage, fmt.Errorf("the image %s is pulled", image))
		if err := a.o.pull(ctx, image); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			a.log.Warn().Err(err).Str("image", image).Msg("an image can't be pulled before its application is started")
		}
	}
	return nil
}
