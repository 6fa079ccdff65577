"""Tools on top of the other wings: conversion, queries of backends, doctor, command line."""
