package carillon_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// What the documents name is there: files, headings, tests, and the functions and types of the code.
func TestDocsNameWhatIsThere(t *testing.T) {
	r := readRepository(t)
	for name, text := range r.docs {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			if !strings.Contains(m[1], "://") && !r.leads(name, m[1]) {
				t.Errorf("%s links to %s", name, m[1])
			}
		}
		for _, test := range regexp.MustCompile(`\b(?:Test|Benchmark)[A-Z]\w*`).FindAllString(text, -1) {
			if !r.funcs[test] {
				t.Errorf("%s names %s", name, test)
			}
		}
		for _, m := range regexp.MustCompile("`([\\w/.-]+\\.go)`").FindAllStringSubmatch(text, -1) {
			if !r.hasFile(m[1]) {
				t.Errorf("%s names the file %s", name, m[1])
			}
		}
		for _, m := range regexp.MustCompile("`(\\w+)\\.(\\w+)`").FindAllStringSubmatch(text, -1) {
			if file := r.bases[m[1]+"."+m[2]] || m[2] == "json" || m[2] == "db"; !file && !r.has(m[1], m[2]) {
				t.Errorf("%s names %s.%s", name, m[1], m[2])
			}
		}
	}
}

// The reading order of a package names files that are there.
func TestReadingOrders(t *testing.T) {
	r := readRepository(t)
	named := 0
	for dir, text := range r.packages {
		for _, file := range regexp.MustCompile(`[\w/]+\.go\b`).FindAllString(text, -1) {
			named++
			if !r.files[path.Join(dir, file)] && !strings.HasPrefix(file, "server/") {
				t.Errorf("%s/doc.go names %s", dir, file)
			}
		}
	}
	if named < 100 {
		t.Errorf("%d files are named", named)
	}
}

// repository is what documents may name.
type repository struct {
	docs     map[string]string          // text of each document, by path
	packages map[string]string          // text of each doc.go, by folder
	headings map[string]map[string]bool // of each document, as links have them
	files    map[string]bool            // by path, folders too
	bases    map[string]bool            // by name alone
	funcs    map[string]bool            // functions without a receiver
	methods  map[string]map[string]bool // by type
	words    map[string]map[string]bool // of the Go files of a package, without tests, by its folder's name
}

var (
	funcDecl = regexp.MustCompile(`(?m)^func (?:\(\w* ?\*?(\w+)(?:\[\w+\])?\) )?(\w+)`)
	word     = regexp.MustCompile(`\w+`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced   = regexp.MustCompile("(?ms)^```.*?^```")
)

func readRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{
		docs: make(map[string]string), packages: make(map[string]string), headings: make(map[string]map[string]bool),
		files: make(map[string]bool), bases: make(map[string]bool), funcs: make(map[string]bool), methods: make(map[string]map[string]bool),
		words: make(map[string]map[string]bool),
	}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "carillon-data") {
			return fs.SkipDir
		}
		name = filepath.ToSlash(name)
		r.files[name], r.bases[path.Base(name)] = true, true
		if ext := path.Ext(name); d.IsDir() || ext != ".go" && ext != ".md" {
			return nil
		}
		text, err := os.ReadFile(name)
		if strings.HasSuffix(name, ".md") {
			r.addDoc(name, string(text))
		} else {
			r.addCode(name, string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *repository) addDoc(name, text string) {
	r.docs[name] = text
	r.headings[name] = make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		r.headings[name][strings.Map(func(c rune) rune {
			switch {
			case c == ' ':
				return '-'
			case c == '-', c == '_', unicode.IsLetter(c), unicode.IsDigit(c):
				return unicode.ToLower(c)
			}
			return -1
		}, m[1])] = true
	}
}

func (r *repository) addCode(name, text string) {
	if path.Base(name) == "doc.go" {
		r.packages[path.Dir(name)] = text
	}
	for _, m := range funcDecl.FindAllStringSubmatch(text, -1) {
		if m[1] == "" {
			r.funcs[m[2]] = true
			continue
		}
		if r.methods[m[1]] == nil {
			r.methods[m[1]] = make(map[string]bool)
		}
		r.methods[m[1]][m[2]] = true
	}
	if strings.HasSuffix(name, "_test.go") {
		return
	}
	in := path.Base(path.Dir(name))
	if r.words[in] == nil {
		r.words[in] = make(map[string]bool)
	}
	for _, w := range word.FindAllString(text, -1) {
		r.words[in][w] = true
	}
}

// leads tells whether a link of a document leads somewhere.
func (r *repository) leads(from, link string) bool {
	to, anchor, _ := strings.Cut(link, "#")
	if to = path.Join(path.Dir(from), to); strings.HasPrefix(link, "#") {
		to = from
	}
	return r.files[to] && (anchor == "" || r.headings[to][anchor])
}

// hasFile tells whether there is a Go file, named with its folder or without. Those of nats-server count as there.
func (r *repository) hasFile(name string) bool {
	return r.files[name] || !strings.Contains(name, "/") && r.bases[name] || strings.HasPrefix(name, "server/")
}

// has tells whether a type has a method, or a package something of a name. What is neither a type with methods nor a package of ours counts
// as there.
func (r *repository) has(of, name string) bool {
	methods, words := r.methods[of], r.words[of]
	return methods == nil && words == nil || methods[name] || words[name]
}
