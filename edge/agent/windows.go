package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/edgebus/edgebus/configs/schedule"
	"github.com/edgebus/edgebus/topics/resource"
)

// lookAgain is how long an agent waits for a window at most before it looks at the clock again, which somebody may set.
const lookAgain = time.Minute

// awaitWindows says how long a spec has to wait for the times of its policy; 0: it can be applied. If it has to wait before it is applied, it is
// downloaded as soon as it may be.
func (a *agent) awaitWindows(ctx context.Context, spec resource.RenderedSpec) (wait time.Duration, err error) {
	if spec.UpdatePolicy == nil {
		return 0, nil
	}
	download, err := a.opens("download", spec.UpdatePolicy.DownloadSchedule)
	if err != nil {
		return 0, err
	}
	update, err := a.opens("update", spec.UpdatePolicy.UpdateSchedule)
	if err != nil {
		return 0, err
	}
	downloaded := a.downloaded == digestOf(spec)
	switch {
	case !downloaded && download > 0:
		return a.waitForWindow(spec, "it is downloaded", download), nil
	case update <= 0:
		return 0, nil
	case !downloaded:
		a.progress(spec.RenderedVersion, stepStage, nil)
		if err := a.download(ctx, spec); err != nil {
			return 0, err
		}
		a.downloaded = digestOf(spec)
		return a.awaitWindows(ctx, spec) // it may have taken a while
	}
	return a.waitForWindow(spec, "it is downloaded, and applied", update), nil
}

// opens is how long it takes until a window opens; 0 or less: it is open.
func (a *agent) opens(what string, s *resource.UpdateSchedule) (time.Duration, error) {
	if s == nil {
		return 0, nil
	}
	w, err := schedule.Parse(*s, schedule.Local)
	if err != nil {
		return 0, failure{resource.FailedInvalid, fmt.Sprintf("updatePolicy.%sSchedule: %v", what, err)}
	}
	now := a.o.Now()
	at := w.Open(now)
	if at.IsZero() {
		return 0, failure{resource.FailedInvalid, fmt.Sprintf("updatePolicy.%sSchedule: %q never comes again", what, s.At)}
	}
	return at.Sub(now), nil
}

func (a *agent) waitForWindow(spec resource.RenderedSpec, what string, wait time.Duration) time.Duration {
	at := a.o.Now().Add(wait).UTC().Truncate(time.Second)
	a.progress(spec.RenderedVersion, stepWindow, fmt.Errorf("%s from %s on", what, at.Format(time.RFC3339)))
	return min(wait, lookAgain)
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
				return failed(ctx, resource.FailedWrite, fmt.Errorf("%s: %w", f.Path, err))
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
