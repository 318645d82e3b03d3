package upgrade

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/subprocess"
	"github.com/edgebus/edgebus/topics/resource"
)

// Files of a version besides its programs.
const (
	manifestName  = "manifest.json"
	signatureName = "manifest.json.minisig"
)

// backupName is the backup of the core's data that is made before an upgrade.
const backupName = "before.tar.gz"

// spareSpace is what is left free on a disk.
const spareSpace = 16 << 20

// stageVersion verifies an order, and fetches and verifies its bundle. Nothing that runs is changed.
func (u *Upgrader) stageVersion(ctx context.Context, o resource.UpgradeOrder) (p prepareResult, err error) {
	if err := u.managesCore(); err != nil {
		return p, err
	}
	switch present := u.state.Version; {
	case present == o.Version && !u.lacksAgent(o):
		return prepareResult{resultNothing, "the node runs this version already"}, nil
	case present == o.Version:
		if err := u.verifyInstalled(present); err != nil {
			return p, failf(resource.UpgradeFailedArtifact, "version %s, which is installed: %v", present, err)
		}
		return prepareResult{result: resultAgentOnly}, nil
	case isOlder(o.Version, present) && !o.AllowDowngrade:
		return p, failf(resource.UpgradeFailedOlder, "version %s is older than %s, which runs, and the order does not allow a downgrade", o.Version, present)
	}
	for _, command := range [][]string{o.Installer, o.Command} {
		if len(command) > 0 {
			if err := u.o.Allows(command); err != nil {
				return p, toFailure(ctx, resource.UpgradeFailedRefused, err)
			}
		}
	}
	if err := u.ready(ctx, o); err != nil {
		return p, err
	}
	if len(o.Command) == 0 {
		err = u.fetch(ctx, o)
	}
	if len(o.Installer) > 0 {
		return prepareResult{result: resultInstaller}, err
	}
	return prepareResult{result: resultDone}, err
}

// runInstaller runs the order's own installer.
func (u *Upgrader) runInstaller(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, up.Started.Add(time.Duration(up.Order.Timeout)*time.Second), errors.New("the time of the upgrade was over, and it was ended"))
	defer cancel()
	err := u.o.Run(ctx, up.Order.Installer, commandEnv(*up, up.Order.Version))
	if err != nil && !errors.As(err, new(*Failure)) {
		err = failf(resource.UpgradeFailedCommand, "%v", err)
	}
	return resultOf(err)
}

// managesCore says why the agent can't replace or restart the core of this node.
func (u *Upgrader) managesCore() error {
	switch {
	case u.core == nil:
		return failf(resource.UpgradeFailedRefused, "root is not /, and upgrade.core.run does not say how the agent is to run the core: it upgrades nothing")
	case u.state.Version == "":
		return failf(resource.UpgradeFailedRefused, "the core of this node is not below %s: install it with scripts/install.sh", u.o.Config.Dir)
	}
	return nil
}

// notReadyError is why an upgrade can't begin yet.
type notReadyError struct{ error }

// ready says what does not hold yet before an upgrade: the core is well, the hub hears it, and the host has the resources that the order asks for.
func (u *Upgrader) ready(ctx context.Context, o resource.UpgradeOrder) error {
	if pid, why := u.core.process(ctx); pid == 0 {
		return notReadyError{fmt.Errorf("the present core does not run: %s", why)}
	}
	r, err := askCore(ctx, u.o.Config.Core.Data)
	if err == nil {
		err = errors.Join(checkSound(r), checkHeard(r, u.o.Config.Trial.Watch))
	}
	if err != nil && !errors.Is(err, errNoState) {
		return notReadyError{fmt.Errorf("the present core is not well: %w", err)}
	}
	return u.within(ctx, o)
}

// within says which of the host's resources is used more than an order allows.
func (u *Upgrader) within(ctx context.Context, o resource.UpgradeOrder) error {
	if o.Checks == nil {
		return nil
	}
	if err := u.o.Exceeded(ctx, *o.Checks); err != nil {
		return notReadyError{err}
	}
	return nil
}

// commandEnv is what a command of the node learns of an upgrade. version is what it is to install: when it is rolled back, the one before.
func commandEnv(up upgradeRecord, version string) []string {
	return []string{"EDGEBUS_UPGRADE_FROM=" + up.From, "EDGEBUS_UPGRADE_TO=" + up.Order.Version, "EDGEBUS_UPGRADE_VERSION=" + version}
}

// fetch fetches the programs of a version for this host. They are in place when all of them are verified.
func (u *Upgrader) fetch(ctx context.Context, o resource.UpgradeOrder) error {
	u.progress(stepFetch, nil)
	u.hook(stepFetch)
	programs, newest, err := u.programs([]byte(o.Manifest), o.Signature, o.Version)
	if err != nil {
		return err
	}
	if err := u.checkFollowers(ctx, programs); err != nil {
		return err
	}
	if has, err := askCore(ctx, u.o.Config.Core.Data); err == nil && newest > 0 && has.StoreFormat > newest {
		return failf(resource.UpgradeFailedFormat, "version %s reads the format %d of the core's store at most, and this node's has the format %d", o.Version, newest, has.StoreFormat)
	}
	if u.verifyInstalled(o.Version) == nil && u.has(o) {
		return nil // by an earlier attempt
	}
	if err := u.versions.prune(u.kept()...); err != nil {
		return toFailure(ctx, resource.UpgradeFailedDisk, err)
	}
	staging := u.versions.staging(o.Version)
	var size, before int64
	for _, a := range programs {
		size += a.Size
	}
	if n, err := freeSpace(u.o.Config.Dir); err == nil && n < size+spareSpace {
		return failf(resource.UpgradeFailedDisk, "%s has %d bytes free, and the version needs %d and %d to spare", u.o.Config.Dir, n, size, int64(spareSpace))
	}
	err = datadir.MakeDir(staging)
	if err == nil {
		err = os.Chmod(staging, 0o755) //nolint:gosec // the core's user runs what is in it
	}
	for _, dir := range []string{u.o.Config.Dir, filepath.Dir(staging)} {
		if err == nil {
			err = os.Chmod(dir, 0o755) //nolint:gosec // as above
		}
	}
	if err != nil {
		return toFailure(ctx, resource.UpgradeFailedDisk, err)
	}
	for _, a := range programs {
		if err := u.fetchProgram(ctx, staging, o.Source, a, func(received int64) { u.received(before+received, size) }); err != nil {
			return err
		}
		before += a.Size
	}
	for name, text := range map[string]string{manifestName: o.Manifest, signatureName: o.Signature} {
		path := filepath.Join(staging, name)
		if err := datadir.WriteFile(path, []byte(text)); err != nil {
			return toFailure(ctx, resource.UpgradeFailedDisk, err)
		}
	}
	u.hook("before the version is in place")
	return toFailure(ctx, resource.UpgradeFailedDisk, errors.Join(u.keepAgent(o.Version), u.versions.install(o.Version)))
}

// keepAgent has a version that is fetched again, and has no agent now, keep the agent that the host is started with.
func (u *Upgrader) keepAgent(version string) error {
	if u.versions.linked(linkAgent) != version || !u.versions.has(version, programAgent) {
		return nil
	}
	err := os.Link(filepath.Join(u.versions.path(version), programAgent), filepath.Join(u.versions.staging(version), programAgent))
	if errors.Is(err, os.ErrExist) { // it has one
		return nil
	}
	return err
}

// has says whether the manifest of a version that is in place is the order's.
func (u *Upgrader) has(o resource.UpgradeOrder) bool {
	text, err := os.ReadFile(filepath.Join(u.versions.path(o.Version), manifestName))
	return err == nil && string(text) == o.Manifest
}

// fetchProgram fetches one program and verifies it.
func (u *Upgrader) fetchProgram(ctx context.Context, dir, source string, a resource.ArtifactProgram, progress func(int64)) error {
	var content io.ReadCloser
	var err error
	if source != "" {
		content, err = u.download(ctx, source, a)
	} else {
		content, err = u.o.Blob(ctx, resource.Content{Digest: a.Digest, Size: a.Size}, progress)
	}
	if err != nil {
		return err
	}
	defer content.Close()
	path := filepath.Join(dir, a.Name)
	if err := writeVerified(path, 0o755, content, a.Size, a.Digest); err != nil {
		if source != "" && !errors.As(err, new(*Failure)) && !isDiskError(err) {
			return err // the connection was cut
		}
		return toFailure(ctx, resource.UpgradeFailedDisk, err)
	}
	return checkProgram(path)
}

// downloadTimeout bounds the time for which a server sends nothing.
const downloadTimeout = time.Minute

// download opens a program at a source that the node's settings allow: on an HTTPS server, or as a blob of a registry's repository. What comes is
// verified as any other content.
func (u *Upgrader) download(ctx context.Context, source string, a resource.ArtifactProgram) (io.ReadCloser, error) {
	at := strings.TrimSuffix(source, "/") + "/" + a.Architecture + "/" + a.Name
	allowed := slices.ContainsFunc(u.o.Config.Sources, func(prefix string) bool { return strings.HasPrefix(at, prefix) })
	where, err := url.Parse(at)
	if !allowed || err != nil || slices.Contains(strings.Split(where.Path, "/"), "..") {
		return nil, failf(resource.UpgradeFailedRefused, "this node fetches nothing from %s: see upgrade.sources of its agent.yaml", at)
	}
	if registry, ok := strings.CutPrefix(strings.TrimSuffix(source, "/"), "oci://"); ok {
		host, repository, _ := strings.Cut(registry, "/")
		at = "https://" + host + "/v2/" + repository + "/blobs/" + a.Digest
	}
	client := sourceClient(downloadTimeout)
	content, challenge, err := httpGet(ctx, client, at, "")
	if challenge != "" && strings.HasPrefix(source, "oci://") {
		var token string
		if token, err = registryToken(ctx, client, challenge); err == nil {
			content, _, err = httpGet(ctx, client, at, token)
		}
	}
	if err != nil {
		return nil, err
	}
	return timedContent{content, downloadTimeout}, nil
}

// sourceClient asks servers of programs. Each part of an answer comes within limit: connection, TLS and headers.
func sourceClient(limit time.Duration) http.Client {
	return http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: limit}).DialContext, TLSHandshakeTimeout: limit, ResponseHeaderTimeout: limit,
			DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 5 || req.URL.Scheme != "https" {
				return errors.New("it redirects too often, or to something else than https")
			}
			return nil
		},
	}
}

// timedContent is a content of a server. It ends when nothing comes for limit.
type timedContent struct {
	io.ReadCloser
	limit time.Duration
}

func (w timedContent) Read(b []byte) (int, error) {
	silence := time.AfterFunc(w.limit, func() { _ = w.Close() }) // then the read returns
	n, err := w.ReadCloser.Read(b)
	if !silence.Stop() && err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("the server has sent nothing for %s", w.limit)
	}
	return n, err
}

// httpGet opens what a server has at an address. If it wants a login first, challenge is what it says about that, beside the error.
func httpGet(ctx context.Context, client http.Client, at, token string) (content io.ReadCloser, challenge string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, "", failf(resource.UpgradeFailedArtifact, "%v", err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token) // it is not sent to another host to which the server redirects
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, "", nil
	}
	_ = res.Body.Close()
	err = fmt.Errorf("%s answers %s", at, res.Status)
	if res.StatusCode == http.StatusUnauthorized {
		challenge = res.Header.Get("WWW-Authenticate")
	}
	if res.StatusCode/100 == 4 && res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusRequestTimeout {
		err = failf(resource.UpgradeFailedArtifact, "%v", err)
	}
	return nil, challenge, err
}

var challengePattern = regexp.MustCompile(`([a-z]+)="([^"]*)"`)

// registryToken gets the token with which a registry lets anybody read a repository, as its answer 401 says:
// Bearer realm="https://auth.example.com/token",service="registry",scope="repository:edgebus:pull".
func registryToken(ctx context.Context, client http.Client, challenge string) (string, error) {
	said := map[string]string{}
	for _, m := range challengePattern.FindAllStringSubmatch(challenge, -1) {
		said[m[1]] = m[2]
	}
	realm, err := url.Parse(said["realm"])
	if scheme, _, _ := strings.Cut(challenge, " "); !strings.EqualFold(scheme, "Bearer") || err != nil || realm.Scheme != "https" {
		return "", failf(resource.UpgradeFailedArtifact, "the registry wants the login %q, and this version knows tokens over HTTPS only", challenge)
	}
	query := realm.Query()
	for _, name := range []string{"service", "scope"} {
		if said[name] != "" {
			query.Set(name, said[name])
		}
	}
	realm.RawQuery = query.Encode()
	answer, _, err := httpGet(ctx, client, realm.String(), "")
	if err != nil {
		return "", err
	}
	defer answer.Close()
	var got struct {
		Token  string `json:"token"`
		Access string `json:"access_token"`
	}
	if err := json.NewDecoder(io.LimitReader(answer, 1<<20)).Decode(&got); err != nil {
		return "", fmt.Errorf("the token of the registry: %w", err)
	}
	return cmp.Or(got.Token, got.Access), nil
}

// verifyInstalled verifies a version that is in place: its signature by the keys of today, and its programs. A version without a manifest was
// installed by hand: of it only the core has to be there.
func (u *Upgrader) verifyInstalled(version string) error {
	dir := u.versions.path(version)
	if !u.versions.has(version, programCore) {
		return fmt.Errorf("%s is not there", filepath.Join(dir, programCore))
	}
	text, err := os.ReadFile(filepath.Join(dir, manifestName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	signature, err := os.ReadFile(filepath.Join(dir, signatureName))
	if err != nil {
		return err
	}
	programs, _, err := u.programs(text, string(signature), version)
	if err != nil {
		return err
	}
	for _, a := range programs {
		if err := verifyFile(filepath.Join(dir, a.Name), a); err != nil {
			return err
		}
	}
	return nil
}

// startTimeout is how long a core may take to start, or to stop, while a backup is asked of it.
const startTimeout = 20 * time.Second

// backUp makes a backup of the core's data, by the core that runs.
func (u *Upgrader) backUp(ctx context.Context) error {
	if _, err := os.Stat(u.o.Config.Core.Data); err != nil {
		return err
	}
	over := time.Now().Add(startTimeout)
	for {
		err := u.maintain(ctx, "backup", u.file(backupName), "--force")
		if err == nil || isDiskError(err) || time.Now().After(over) || !sleep(ctx, 500*time.Millisecond) {
			return err
		}
	}
}

// maintain has the committed core's program work on the data directory, as its owner.
func (u *Upgrader) maintain(ctx context.Context, args ...string) error {
	return u.runCore(ctx, 10*time.Minute, nil, append(args, "--data-dir", u.o.Config.Core.Data))
}

// runCore runs the committed core's program once, with arguments, and returns an error with the end of its output if it fails.
func (u *Upgrader) runCore(ctx context.Context, limit time.Duration, as *syscall.SysProcAttr, args []string) error {
	command := subprocess.Command{
		Argv: append([]string{filepath.Join(u.versions.path(u.state.Version), programCore)}, args...), Time: limit,
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "TMPDIR=" + os.TempDir()},
	}
	if as != nil {
		command.As = as.Credential
	}
	if _, err := command.Run(ctx); err != nil {
		return fmt.Errorf("edgecore %s: %w", args[0], err)
	}
	return nil
}

// restore puts the backup back if the core before can't open its data, and starts it again.
func (u *Upgrader) restore(ctx context.Context, up *upgradeRecord) error {
	why := errors.New(up.RestartError)
	if err := u.core.stop(ctx); err != nil {
		return errors.Join(why, err)
	}
	damage := u.maintain(ctx, "check")
	var exit *exec.ExitError
	if !errors.As(damage, &exit) || exit.ExitCode() != 1 { // its data is not the reason, or nobody knows
		return errors.Join(why, u.restart(ctx))
	}
	u.log.Error().Err(damage).Msg("THE CORE'S DATA CAN'T BE OPENED ANY MORE AND IS PUT BACK FROM THE BACKUP BEFORE THE UPGRADE: what was written since is moved aside")
	if err := u.maintain(ctx, "restore", u.file(backupName), "--force"); err != nil {
		return errors.Join(why, damage, err, u.restart(ctx))
	}
	up.Failed = &Failure{up.Failed.Reason, fmt.Sprintf("%s; the core's data could not be opened any more (%v) and was put back from the backup of %s: what was written since is moved aside",
		up.Failed.Message, damage, up.Started.UTC().Format(time.RFC3339)), up.Failed.Log}
	if err := u.restart(ctx); err != nil {
		return err
	}
	return u.revived(ctx)
}
