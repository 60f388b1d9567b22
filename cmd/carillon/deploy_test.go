package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"go.yaml.in/yaml/v3"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// startDeployed runs one nats-server, not a cluster, with docs/deploy/nats/server.conf, whose paths it replaces. The server's
// certificates are in the directory tls.
func startDeployed(t *testing.T, tls string) (url string) {
	t.Helper()
	for _, user := range []string{"ENGINE", "OPERATOR", "CLIENT", "BILLING", "ACME"} {
		t.Setenv("CARILLON_"+user+"_PASSWORD", strings.ToLower(user))
	}
	t.Setenv("NATS_SERVER_NAME", "nats-1")
	dir := t.TempDir()
	for _, name := range []string{"server.conf", "carillon.conf"} {
		b, err := os.ReadFile(filepath.Join("../../docs/deploy/nats", name))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("/etc/nats/tls", tls, "/var/lib/nats", filepath.Join(dir, "data")).Replace(string(b))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o, err := natsserver.ProcessConfigFile(filepath.Join(dir, "server.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Routes) != 3 || o.Cluster.TLSConfig == nil {
		t.Errorf("the example is no cluster of three over TLS: %v", o.Routes)
	}
	if o.Cluster.PingInterval != 5*time.Second || o.Cluster.MaxPingsOut != 2 {
		t.Errorf("a server that is cut off is forgotten after %d pings of %s", o.Cluster.MaxPingsOut, o.Cluster.PingInterval)
	}
	if o.PingInterval != 2*time.Second || o.MaxPingsOut != 1 {
		t.Errorf("a client that is silent is dropped after %d pings of %s", o.MaxPingsOut, o.PingInterval)
	}
	if !o.Cluster.TLSCheckKnownURLs {
		t.Error("whoever has a client's certificate is taken for a server of the cluster, which may do anything")
	}
	o.Cluster, o.Routes = natsserver.ClusterOpts{}, nil
	o.HTTPPort = 0
	return natstest.Start(t, o).ClientURL()
}

// An engine and clients connect over TLS with certificates on both sides, as in docs/deploy: by flags, and clients also by the environment.
func TestTLS(t *testing.T) {
	certs, others := t.TempDir(), t.TempDir()
	ca := natstest.NewAuthority(t, certs)
	for _, name := range []string{"server", "engine", "client"} {
		ca.Issue(name)
	}
	natstest.NewAuthority(t, others).Issue("client")
	url := startDeployed(t, certs)
	of := func(dir, name string) []string {
		return []string{
			"--tlsca", filepath.Join(certs, "ca.crt"),
			"--tlscert", filepath.Join(dir, name+".crt"), "--tlskey", filepath.Join(dir, name+".key"),
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var log strings.Builder
	go func() {
		ended <- Run(ctx, append([]string{
			"serve", "--data", t.TempDir(), "--http", "127.0.0.1:0", "--partitions", "2", "--nats", url, "--user", "engine", "--password", "engine",
		}, of(certs, "engine")...), strings.NewReader(""), w, &log)
		w.Close()
	}()
	defer func() {
		stop()
		if code := <-ended; code != 0 {
			t.Errorf("serve ended with %d:\n%s", code, &log)
		}
	}()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || !strings.HasPrefix(line, "carillon ready nats="+url) {
		t.Fatalf("serve printed %q, %v", line, err)
	}

	client := []string{"--server", url, "--user", "client", "--password", "client"}
	if code, _, errOut := run(t, append(append([]string{"job", "put", "a", "--in", "1h"}, client...), of(certs, "client")...)...); code != 0 {
		t.Errorf("put over TLS: %s", errOut)
	}
	for what, c := range map[string]struct {
		flags []string
		says  string
	}{
		"without the authority": {nil, "tls"},
		"without a certificate": {[]string{"--tlsca", filepath.Join(certs, "ca.crt")}, "tls"},
		"another's certificate": {of(others, "client"), "tls"},
		"another authority":     {append(of(certs, "client"), "--tlsca", filepath.Join(others, "ca.crt")), "tls"},
		"no file":               {[]string{"--tlsca", "nowhere.crt"}, "nowhere.crt"},
	} {
		if code, _, errOut := run(t, append(append([]string{"job", "get", "a", "--timeout", "5s"}, client...), c.flags...)...); code != exitFailure || !strings.Contains(errOut, c.says) {
			t.Errorf("%s: %d, %s", what, code, errOut)
		}
	}
	t.Setenv("NATS_URL", url)
	t.Setenv("NATS_USER", "client")
	t.Setenv("NATS_PASSWORD", "client")
	t.Setenv("NATS_CA", filepath.Join(certs, "ca.crt"))
	t.Setenv("NATS_CERT", filepath.Join(certs, "client.crt"))
	t.Setenv("NATS_KEY", filepath.Join(certs, "client.key"))
	if code, out, errOut := run(t, "job", "get", "a", "--json"); code != 0 || !strings.Contains(out, `"id":"a"`) {
		t.Errorf("by the environment: %s%s", out, errOut)
	}
	t.Setenv("NATS_PASSWORD", "wrong")
	if code, _, errOut := run(t, "job", "get", "a"); code != exitFailure || !strings.Contains(errOut, "Authorization Violation") {
		t.Errorf("a wrong password: %d, %s", code, errOut)
	}
}

// deployed returns the content of a file below docs/deploy.
func deployed(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../docs/deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// This binary accepts each carillon command line in the comments, units and manifests below docs/deploy.
func TestDeployedCommands(t *testing.T) {
	found := 0
	check := func(line string) {
		found++
		line = strings.NewReplacer("\\\n", " ", "$(POD_NAME)", "pod", "%l", "host").Replace(line)
		if len(parseLine(t, line)) != 1 {
			t.Errorf("no command: %q", line)
		}
	}
	for _, name := range []string{"nats/carillon.conf", "systemd/carillon.service"} {
		for _, line := range regexp.MustCompile(`(?:# +|/)(carillon (?:serve|work)\b(?:.*\\\n)*.*)`).FindAllStringSubmatch(deployed(t, name), -1) {
			check(line[1])
		}
	}
	for _, m := range manifests(t, "kubernetes/carillon.yaml") {
		containers, _ := at(m, "spec", "template", "spec", "containers").([]any)
		for _, c := range containers {
			line := "carillon"
			for _, arg := range at(c, "args").([]any) {
				line += " " + arg.(string)
			}
			check(line)
		}
	}
	if found != 4 {
		t.Errorf("%d command lines were found, want 4", found)
	}
}

// manifests returns the documents of a YAML file below docs/deploy.
func manifests(t *testing.T, name string) (all []any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(deployed(t, name)))
	for {
		var m any
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, m)
	}
}

// at returns what a document has under a path of keys, or nil.
func at(m any, keys ...string) any {
	for _, k := range keys {
		of, _ := m.(map[string]any)
		m = of[k]
	}
	return m
}

// The manifests fit together: what one refers to exists in another, and the command line reads each environment variable that they set.
func TestKubernetes(t *testing.T) {
	var set any
	for _, m := range manifests(t, "kubernetes/carillon.yaml") {
		selector := at(m, "spec", "selector")
		if labels := at(selector, "matchLabels"); labels != nil {
			selector = labels
		}
		if !reflect.DeepEqual(selector, map[string]any{"app": "carillon"}) {
			t.Errorf("%v selects %v", at(m, "kind"), selector)
		}
		if at(m, "kind") == "StatefulSet" {
			set = m
		}
	}
	if !reflect.DeepEqual(at(set, "spec", "template", "metadata", "labels"), map[string]any{"app": "carillon"}) || at(set, "spec", "serviceName") != "carillon" {
		t.Error("the set's pods are not those that the service selects")
	}
	volumes := map[any]bool{}
	for _, v := range append(at(set, "spec", "template", "spec", "volumes").([]any), at(set, "spec", "volumeClaimTemplates").([]any)...) {
		volumes[at(v, "name")], volumes[at(v, "metadata", "name")] = true, true
	}
	c := at(set, "spec", "template", "spec", "containers").([]any)[0]
	for _, m := range at(c, "volumeMounts").([]any) {
		if !volumes[at(m, "name")] {
			t.Errorf("there is no volume %v", at(m, "name"))
		}
	}
	pod := at(set, "spec", "template", "spec")
	if apart, _ := at(pod, "affinity", "podAntiAffinity", "preferredDuringSchedulingIgnoredDuringExecution").([]any); len(apart) != 1 ||
		!reflect.DeepEqual(at(apart[0], "podAffinityTerm", "labelSelector", "matchLabels"),
			map[string]any{"app.kubernetes.io/name": "nats", "app.kubernetes.io/component": "nats"}) { // the chart's labels
		t.Errorf("engines are not kept apart from nats-servers, as operations.md says: %v", apart)
	}
	for _, w := range []struct {
		of   any
		path string
		want any
	}{
		// What a namespace asks for that enforces the Pod Security Standard "restricted", and no more rights than an engine needs.
		{pod, "automountServiceAccountToken", false},
		{pod, "securityContext runAsNonRoot", true},
		{pod, "securityContext seccompProfile type", "RuntimeDefault"},
		{c, "securityContext allowPrivilegeEscalation", false},
		{c, "securityContext readOnlyRootFilesystem", true},
		{c, "securityContext capabilities drop", []any{"ALL"}},
		// Why an engine ended is what kubectl describe shows.
		{c, "terminationMessagePolicy", "FallbackToLogsOnError"},
	} {
		if is := at(w.of, strings.Fields(w.path)...); !reflect.DeepEqual(is, w.want) {
			t.Errorf("%s is %v, want %v", w.path, is, w.want)
		}
	}
	for _, e := range at(c, "env").([]any) {
		name := at(e, "name").(string)
		if name == "POD_NAME" || name == "GOMEMLIMIT" { // the arguments refer to the former, and Go's runtime reads the latter
			continue
		}
		t.Setenv(name, "")
		before := connection{}
		_ = before.resolve() // a certificate without its key is an error, but the variable has been read
		t.Setenv(name, "given")
		after := connection{}
		if _ = after.resolve(); after == before {
			t.Errorf("the command line does not read $%s", name)
		}
	}

	// The chart knows every key of nats-values.yaml.
	known := map[string]bool{}
	keys, err := os.ReadFile("testdata/nats-chart-keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	for key := range strings.Lines(string(keys)) {
		known[strings.TrimSpace(key)] = true
	}
	values := manifests(t, "kubernetes/nats-values.yaml")[0]
	var walk func(m any, path string)
	walk = func(m any, path string) {
		if known[path] || known[path+" *"] {
			return
		}
		of, ok := m.(map[string]any)
		if !ok {
			t.Errorf("the chart has no %s", path)
		}
		for k, v := range of {
			walk(v, strings.TrimPrefix(path+"."+k, "."))
		}
	}
	walk(values, "")

	if pings := at(values, "config", "cluster", "merge").(map[string]any); pings["ping_interval"] != "5s" || pings["ping_max"] != 2 {
		t.Errorf("a server that is cut off is forgotten after %v", pings)
	}
	if pings := at(values, "config", "merge").(map[string]any); pings["ping_interval"] != "2s" || pings["ping_max"] != 1 {
		t.Errorf("a client that is silent is dropped after %v", pings)
	}
	if of := at(values, "config", "cluster", "tls", "merge").(map[string]any); of["verify_cert_and_check_known_urls"] != true {
		t.Errorf("whoever has a client's certificate is taken for a server of the cluster: %v", of)
	}

	// The servers get every password that carillon.conf refers to.
	given := at(values, "container", "env").(map[string]any)
	if at(values, "container", "resources", "limits", "memory") != nil && given["GOMEMLIMIT"] == nil {
		t.Error("nats-server has a limit of memory that Go does not know of")
	}
	for _, name := range regexp.MustCompile(`\$(CARILLON_\w+)`).FindAllStringSubmatch(deployed(t, "nats/carillon.conf"), -1) {
		if given[name[1]] == nil {
			t.Errorf("nats-values.yaml does not give %s", name[1])
		}
	}
}

// systemd accepts the units. Without systemd-analyze only their sections are looked at.
func TestUnits(t *testing.T) {
	for _, unit := range []string{"carillon.service", "nats-server.service"} {
		text := deployed(t, "systemd/"+unit)
		for _, section := range []string{"[Unit]", "[Service]", "[Install]"} {
			if !strings.Contains(text, "\n"+section+"\n") {
				t.Errorf("%s has no %s", unit, section)
			}
		}
		t.Run(unit, func(t *testing.T) {
			analyze, err := exec.LookPath("systemd-analyze")
			if err != nil {
				t.Skip("NOT TESTED: there is no systemd-analyze here to verify it")
			}
			text := regexp.MustCompile(`/usr/local/bin/[a-z-]+`).ReplaceAllString(text, "/bin/true") // it checks that the programs exist
			file := filepath.Join(t.TempDir(), unit)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
			if err != nil || strings.Contains(string(out), unit) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
