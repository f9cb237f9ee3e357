// Package demo is what `workers demo` does: it publishes world model cards through the worlds use
// case, each in a business transaction of its own, and shows them arriving as platform system
// cards; or it shows every flow of the product once, step by step. It uses what a worker has, and nothing of its own that the
// product lacks.
package demo
