// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// An image has the program, and nothing that an intruder could use.
func TestImagesHaveOneProgramAndRunAsNobody(t *testing.T) {
	b := newBuild(t, "v0.9.0")
	for _, i := range b.images() {
		if i.program != "edgecore" && i.program != "mapper-virtual" {
			continue
		}
		image := b.imageForTest(t, i)
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != "65532:65532" || config.Architecture != b.arches[0] || config.Config.Healthcheck.Test[2] != "health" {
			t.Errorf("%s: %+v", i.name, config.Config)
		}
		programs := regexp.MustCompile(`(?m)^-..x.*? (\S+)$`).FindAllStringSubmatch(listOf(t, image), -1)
		if len(programs) != 1 || programs[0][1] != "usr/bin/"+i.program {
			t.Errorf("%s has the programs %v", i.name, programs)
		}
	}
}

func (b *releaseBuild) imageForTest(t *testing.T, i programImage) v1.Image {
	t.Helper()
	if err := b.compile(b.arches[0], i.program); err != nil {
		t.Fatal(err)
	}
	if err := b.writeImage(i); err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(filepath.Join(b.out, i.name+"_v0.9.0_"+b.arches[0]+".docker.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// listOf are the files of an image, as tar lists them.
func listOf(t *testing.T, image v1.Image) string {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, layer := range layers {
		text, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("tar", "-tv")
		cmd.Stdin, cmd.Stdout = text, &all
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		_ = text.Close()
	}
	return all.String()
}

// composeScript has docker-compose do what a block of docs says, in a namespace without another network. There is no systemd for podman's timers, so
// the health checks are run by hand; crun takes no mixture of both versions of control groups.
const composeScript = `
mount --make-rprivate /
for dir in $(awk '$3 == "cgroup2" && $2 != "/sys/fs/cgroup" { print $2 }' /proc/mounts); do umount "$dir"; done
ip link set lo up
eventually() {
	for n in $(seq 100); do "$@" >/dev/null 2>&1 && return; sleep 0.2; done
	"$@"
}
remove() { podman rm --force --depend --time 1 --all || podman rm --force --time 1 --all; }
end() {
	eventually remove || echo "containers are left" # it fails while a container that has ended is being removed
	kill $service
}
podman system service --time 0 "$DOCKER_HOST" 2>"$DIR/service.log" &
service=$!
trap end EXIT
for n in $(seq 100); do [[ -S $DIR/podman.sock ]] && break; sleep 0.1; done
for image in "$DIR"/*.docker.tar; do podman load --quiet --input "$image"; done
docker() {
	case $1 in
	load) ;;
	compose)
		local how=() # there is no terminal
		case $4 in run | exec) how=(-T) ;; esac
		docker-compose --project-name try "$2" "$3" --file "$DIR/override.yaml" "$4" "${how[@]}" "${@:5}"
		;;
	*) podman "$@" ;;
	esac
}
cd "$ROOT"
eval "$BEFORE"
eval "$README"
`

const nodeScript = `
eventually podman exec edgebus-hub /usr/bin/cloudhub health
eventually podman exec try_node_1 /usr/bin/edgecore health
eventually podman exec try_mapper-virtual_1 /usr/bin/mapper-virtual health
eventually podman exec try_mapper-modbus_1 /usr/bin/mapper-modbus health
echo "published: $(curl --silent --insecure https://127.0.0.1:8443/readyz | tail -n 1)"
echo "user: $(stat --format %u "/proc/$(podman inspect --format '{{.State.Pid}}' edgebus-hub)")"
echo "power: $(podman run --rm --network container:edgebus-hub edgebus:v0.9.0 twin get lamp power -o value)"
`

func TestComposeStartsAHubWithANodeAndMappers(t *testing.T) {
	b := newBuild(t, "v0.9.0")
	_, readme, _ := strings.Cut(docBlock(t, "../../docs/overview.md", "make images"), "\n") // they were made
	b.compose(t, composeRun{
		images: "edgebus edgebus-hub edgebus-core edgebus-mapper-virtual edgebus-mapper-modbus", readme: readme, script: nodeScript,
		override: "services:\n  hub: {healthcheck: {disable: true}}\n  node: {healthcheck: {disable: true}}\n  mapper-virtual: {healthcheck: {disable: true}}\n  mapper-modbus: {healthcheck: {disable: true}}\n",
		want:     []string{"published: ok", "user: 65532", "power: ON"},
	})
}

const clusterScript = `
ready() { curl --silent --insecure "https://127.0.0.1:$1/readyz" | tail -n 1; }
first() { [[ $(ready 8443) == ok ]]; }
both() { [[ $(ready 8444) == ok && $(ready 8445) == ok ]]; } # one serves, and the other has requests answered by it
eventually first
echo "first: $(ready 8443)"
podman stop --time 0 try_hub-1_1 >/dev/null # kills it, and it is not started again
eventually both
echo "then: $(ready 8444)"
`

// The servers' image is one of the test's own: no registry is asked for another. podman here has no names for containers, which have addresses instead.
func TestComposeStartsThreeHubs(t *testing.T) {
	b := newBuild(t, "v0.9.0")
	names := []string{"nats-1", "nats-2", "nats-3", "hub-1", "hub-2", "hub-3"}
	override, hosts := "networks: {default: {external: true, name: hubs}}\nservices:\n", ""
	for i, name := range names {
		hosts += fmt.Sprintf("%q, ", fmt.Sprintf("%s:10.89.7.%d", name, 11+i))
	}
	for i, name := range names {
		override += fmt.Sprintf("  %s: {networks: {default: {ipv4_address: 10.89.7.%d}}, extra_hosts: [%s], healthcheck: {disable: true}}\n", name, 11+i, hosts)
	}
	b.compose(t, composeRun{
		images: "edgebus-hub", readme: docBlock(t, "../../docs/cluster.md", "docker compose -f configs/deploy/compose/cluster.yaml"), override: override, want: []string{"first: ok", "then: ok"},
		before: `tar -c -C "$ROOT/.tools" nats-server | podman import --change 'ENTRYPOINT ["/nats-server"]' - docker.io/library/nats:2.15
podman network create --subnet 10.89.7.0/24 hubs
`,
		script: clusterScript,
	})
}

// composeRun is what docker-compose starts.
type composeRun struct {
	images, before, readme, script, override string
	want                                     []string // lines of what the script says
}

func (b *releaseBuild) compose(t *testing.T, c composeRun) {
	t.Helper()
	requirePrograms(t, "podman", "crun", "docker-compose", "unshare", "curl")
	for _, i := range b.images() {
		if slices.Contains(strings.Fields(c.images), i.name) {
			b.imageForTest(t, i)
		}
	}
	storage := t.TempDir()
	for name, text := range map[string]string{
		"containers.conf": "[containers]\ncgroups = \"disabled\"\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n[network]\nnetwork_config_dir = \"" + storage + "/networks\"\n",
		"storage.conf":    "[storage]\ndriver = \"overlay\"\ngraphroot = \"" + storage + "/graph\"\nrunroot = \"" + storage + "/run\"\n",
		"override.yaml":   c.override,
	} {
		if err := os.WriteFile(filepath.Join(b.out, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "--mount", "timeout", "--kill-after=10", "120", "bash", "-euo", "pipefail", "-c", composeScript+c.script)
	cmd.Env = append(os.Environ(), "BEFORE="+c.before, "README="+c.readme, "DIR="+b.out, "ROOT="+b.root, "DOCKER_HOST=unix://"+b.out+"/podman.sock",
		"CONTAINERS_CONF="+b.out+"/containers.conf", "CONTAINERS_STORAGE_CONF="+b.out+"/storage.conf")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // what it leaves running has its output
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range c.want {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("there is no %q in\n%s", want, &out)
		}
	}
}
